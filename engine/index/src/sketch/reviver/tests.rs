//! What moves where, and that every token is counted once.

use proptest::prelude::*;

use super::*;

const SHAPE: Shape = Shape { recent: 4, slack: 3, candidates: 5, rows: 3, buckets: 4 };

fn row(token: usize, dim: usize) -> Vec<f16> {
    (0..dim).map(|d| f16::from_f32(((token * 5 + d * 3) % 7) as f32 - 3.0)).collect()
}

fn filled(tokens: usize, shape: Shape) -> Reviver {
    let mut reviver = Reviver::new(shape, (4, 2), 1);
    for t in 0..tokens {
        reviver.push(&row(t, 4), &row(t + 50, 2)).unwrap();
    }
    reviver
}

fn exact(reviver: &Reviver) -> Vec<u32> {
    (0..reviver.tokens() as u32).filter(|&t| reviver.is_exact(t)).collect()
}

#[test]
fn the_queue_empties_in_batches_into_the_heap_and_the_least_attended_go() {
    let mut reviver = filled(7, SHAPE);
    assert_eq!((reviver.recent.len(), reviver.candidates.len()), (7, 0));
    reviver.push(&row(7, 4), &row(57, 2)).unwrap();
    assert_eq!((reviver.recent.len(), reviver.candidates.len()), (5, 3));
    reviver.observe(&[0, 2], &[1.0, 0.5]).unwrap();
    for t in 8..14 {
        reviver.push(&row(t, 4), &row(t + 50, 2)).unwrap();
    }
    // Nine left the queue; 0 and 2 were attended to, of the others the first went.
    assert_eq!(exact(&reviver), [0, 2, 6, 7, 8, 9, 10, 11, 12, 13]);
}

#[test]
fn a_token_that_becomes_significant_changes_places_with_the_least_candidate() {
    let mut reviver = filled(14, SHAPE);
    assert_eq!(reviver.places[0], Place::Vague);
    let (mut read, mut values) = (Vec::new(), Vec::new());
    reviver.reconstruct(&[0], &mut read, &mut values).unwrap();
    let held: Vec<u32> = reviver.candidates.iter().map(|c| c.0.1).collect();
    let least = held.iter().copied().min().unwrap();
    reviver.observe(&[0], &[0.25]).unwrap();
    assert!(matches!(reviver.places[0], Place::Held(_)) && !reviver.is_exact(0));
    assert_eq!(reviver.places[least as usize], Place::Vague);
    assert_eq!(reviver.candidates.len(), 5);
    // No more attention than the least candidate: it stays.
    reviver.observe(&[1], &[0.0]).unwrap();
    assert_eq!(reviver.places[1], Place::Vague);
}

#[test]
fn what_cannot_be_is_refused_and_changes_nothing() {
    let mut reviver = filled(9, SHAPE);
    let bad = [f16::ONE, f16::NAN, f16::ONE, f16::ONE];
    assert!(matches!(
        reviver.push(&bad, &row(1, 2)),
        Err(SketchError::NotFinite { token: 9, what: "key", element: 1 })
    ));
    assert!(matches!(reviver.push(&row(1, 4), &row(1, 3)), Err(SketchError::Dim { what: "value", .. })));
    assert!(matches!(reviver.observe(&[0, 9], &[1.0, 1.0]), Err(SketchError::Unknown { token: 9, .. })));
    assert!(matches!(reviver.observe(&[0, 1], &[1.0, f32::NAN]), Err(SketchError::Weight { .. })));
    assert!(reviver.reconstruct(&[0, 9], &mut Vec::new(), &mut Vec::new()).is_err());
    assert_eq!((reviver.tokens(), reviver.weight(0)), (9, 0.0));
}

proptest! {
    #[test]
    fn every_token_is_counted_once(
        tokens in 1usize..120,
        (recent, slack, candidates) in (0usize..9, 1usize..6, 0usize..9),
        watched in prop::collection::vec((0u32..120, 0f32..1.0), 0..40),
    ) {
        let shape = Shape { recent, slack, candidates, rows: 3, buckets: 5 };
        let mut reviver = filled(tokens, shape);
        for (token, weight) in watched {
            if (token as usize) < tokens {
                reviver.observe(&[token], &[weight]).unwrap();
            }
        }
        let held = reviver.places.iter().filter(|p| matches!(p, Place::Held(_))).count();
        prop_assert_eq!(held, reviver.recent.len() + reviver.candidates.len());
        prop_assert!(held <= recent + slack + candidates);
        let mut out = vec![Partial::neutral(2); 2];
        let d = Description::scaled(0.5);
        reviver.attend((&Kernels::native(), &d), &[0.0; 8], 0..tokens, &mut out);
        for partial in out {
            prop_assert_eq!(partial.l(), tokens as f32);
            prop_assert_eq!(partial.l_exact, exact(&reviver).len() as f32);
        }
    }
}
