use super::*;
use proptest::prelude::*;

#[test]
fn reserved_bytes_are_never_refused() {
    let budget = Budget::new(100);
    let a = budget.purse(60).unwrap();
    assert_eq!(budget.purse(41).unwrap_err(), Short { needed: 41, available: 40, limit: 100 });
    let b = budget.purse(0).unwrap();
    let all = b.charge(Kind::Kv, 40).unwrap();
    assert!(b.charge(Kind::Kv, 1).is_err());
    let held = a.charge(Kind::Index, 60).unwrap();
    assert!(a.charge(Kind::Kv, 1).is_err());
    assert_eq!(budget.granted(), 100);
    drop((all, held));
    assert_eq!(budget.granted(), 60);
    drop(a);
    assert_eq!((budget.granted(), budget.usage()), (0, Usage::default()));
}

#[test]
fn an_extension_leaves_the_reservation_alone_and_ends() {
    let budget = Budget::new(100);
    let purse = budget.purse(60).unwrap();
    assert_eq!(purse.extend(41).unwrap_err(), Short { needed: 41, available: 40, limit: 100 });
    let more = purse.extend(40).unwrap();
    let (work, tokens) = (purse.charge(Kind::Scratch, 40), purse.charge(Kind::Kv, 60));
    assert!(work.is_ok() && tokens.is_ok() && purse.charge(Kind::Kv, 1).is_err());
    drop((work, more));
    assert_eq!(budget.granted(), 60);
    let more = purse.extend(40).unwrap();
    purse.end_reservation();
    drop(more);
    drop(tokens);
    assert_eq!((budget.granted(), budget.usage()), (0, Usage::default()));
}

#[test]
fn charges_outlive_the_reservation() {
    let budget = Budget::new(100);
    let purse = budget.purse(50).unwrap();
    let mut c = purse.charge(Kind::Kv, 70).unwrap();
    let part = c.split(30);
    purse.end_reservation();
    assert_eq!(budget.granted(), 70);
    drop(c);
    assert_eq!(budget.granted(), 30);
    drop((part, purse));
    assert_eq!(budget.granted(), 0);
}

#[test]
fn spilled_rows_shrink_the_reservation_and_a_promotion_gives_it_back() {
    let budget = Budget::new(100);
    let purse = budget.purse(80).unwrap();
    let rows = purse.charge(Kind::Kv, 50).unwrap();
    // As a spill does: counted as spilled, then off the reservation, then out of RAM with the last reader.
    let mapped = purse.count_spilled(50);
    purse.shrink(50);
    assert_eq!((budget.granted(), budget.usage().spilled), (50, 50));
    drop(rows);
    assert_eq!(budget.granted(), 30);
    let other = budget.purse(60).unwrap();
    assert_eq!(purse.promote(50).unwrap_err(), Short { needed: 50, available: 10, limit: 100 });
    drop(other);
    let rows = purse.promote(50).unwrap();
    drop(mapped);
    assert_eq!((budget.granted(), budget.usage().kv, budget.usage().spilled), (80, 50, 0));
    assert!(purse.charge(Kind::Kv, 30).is_ok());
    drop((rows, purse));
    assert_eq!((budget.granted(), budget.usage()), (0, Usage::default()));
    // After a restart the same, from the start.
    let purse = budget.purse_beside(80, 50).unwrap();
    assert_eq!(budget.granted(), 30);
    drop(purse.promote(50).unwrap());
    assert_eq!(budget.granted(), 80);
}

/// Gives back one charge of ten at a time.
struct Cold(Mutex<Vec<Charge>>);

impl Reclaim for Cold {
    fn reclaim(&self, missing: u64, _until: Instant) -> bool {
        assert!(missing > 0);
        lock(&self.0).pop().is_some()
    }
}

#[test]
fn what_is_missing_is_reclaimed_and_no_more() {
    let budget = Budget::new(100);
    let purse = budget.purse(0).unwrap();
    let cold = (0..10).map(|_| purse.charge(Kind::Kv, 10).unwrap()).collect();
    let cold = Arc::new(Cold(Mutex::new(cold)));
    let weak: Weak<dyn Reclaim> = Arc::downgrade(&(cold.clone() as Arc<dyn Reclaim>));
    budget.reclaim_from(weak);
    let a = purse.charge(Kind::Scratch, 25).unwrap();
    assert_eq!((lock(&cold.0).len(), budget.granted()), (7, 95));
    let b = budget.purse(15).unwrap();
    assert_eq!((lock(&cold.0).len(), budget.granted()), (6, 100));
    let c = b.extend(30).unwrap();
    assert_eq!((lock(&cold.0).len(), budget.granted()), (3, 100));
    // More than the budget is refused at once, more than can be had once nothing is left.
    assert!(budget.purse(101).is_err() && lock(&cold.0).len() == 3);
    let e = purse.charge(Kind::Kv, 31).unwrap_err();
    assert_eq!(e, Short { needed: 31, available: 30, limit: 100 });
    drop((a, b, c));
    drop(cold);
    assert!(purse.charge(Kind::Kv, 101).is_err());
}

proptest! {
    #[test]
    fn always_within_the_limit_and_back_to_zero(
        limit in 0u64..200,
        steps in proptest::collection::vec((0usize..3, 0u64..80, any::<bool>()), 0..60),
    ) {
        let budget = Budget::new(limit);
        let mut purses = Vec::new();
        let mut charges: Vec<Charge> = Vec::new();
        for (who, bytes, drop_one) in steps {
            if drop_one && !charges.is_empty() {
                charges.swap_remove(bytes as usize % charges.len());
            } else if purses.len() < 3 {
                purses.extend(budget.purse(bytes).ok());
            } else {
                let purse: &Arc<Purse> = &purses[who];
                charges.extend(purse.charge(Kind::Kv, bytes).ok());
            }
            prop_assert!(budget.granted() <= limit);
            let held: u64 = charges.iter().map(Charge::bytes).sum();
            prop_assert_eq!(budget.usage().kv, held);
            prop_assert!(budget.granted() >= held);
        }
        drop(purses);
        drop(charges);
        prop_assert_eq!(budget.granted(), 0);
        prop_assert_eq!(budget.usage(), Usage::default());
    }
}
