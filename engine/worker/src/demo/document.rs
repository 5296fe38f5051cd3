//! The demo's own document: a port's logbook in plain sentences, with facts hidden in it.

use rand::rngs::StdRng;
use rand::seq::IndexedRandom;
use rand::{Rng, SeedableRng};

/// A fact of the document, and how the demo asks for it.
pub struct Fact {
    /// The sentence in the document.
    pub sentence: String,
    /// What is appended to the document to ask for it.
    pub question: String,
    /// What a right answer contains.
    pub answer: String,
}

/// The beginning of each fact, and what may follow: words that nothing else in the document suggests.
const FACTS: [(&str, [&str; 4]); 10] = [
    ("The captain's parrot is called", ["Bismarck", "Napoleon", "Hannibal", "Socrates"]),
    ("The password for the lighthouse door is", ["marigold", "thunder", "cinnamon", "velvet"]),
    ("The baker's favourite fruit is the", ["pomegranate", "apricot", "blackberry", "pineapple"]),
    ("The flag of the smuggler's boat is", ["purple", "turquoise", "crimson", "silver"]),
    ("The doctor's telephone number is", ["5512", "7340", "8126", "9475"]),
    ("The widow hid her jewels inside the", ["piano", "chimney", "teapot", "mattress"]),
    ("The secret ingredient of the cook's soup is", ["saffron", "vanilla", "honey", "ginger"]),
    ("The night train leaves from platform", ["seventeen", "eleven", "thirteen", "nineteen"]),
    ("The blacksmith's daughter married a", ["dentist", "violinist", "shepherd", "magician"]),
    ("The stolen painting shows a", ["peacock", "windmill", "dragon", "waterfall"]),
];
const VESSELS: [&str; 8] = [
    "the ferry",
    "a tanker",
    "the pilot boat",
    "a trawler",
    "the dredger",
    "a barge",
    "the tug",
    "a coaster",
];
const DEEDS: [&str; 10] = [
    "came in under a grey sky and tied up at the north quay",
    "waited outside the breakwater until the tide turned",
    "took on water, bread and two crates of rope",
    "left before noon with a following wind",
    "was painted along the waterline by the harbour crew",
    "unloaded timber for the sawmill behind the church",
    "lost an hour to fog and another to paperwork",
    "passed the lighthouse and signalled that all was well",
    "had its engine looked at by the mechanic from the yard",
    "brought letters, newspapers and a box of oranges",
];
const REMARKS: [&str; 8] = [
    "The gulls were louder than usual.",
    "Nobody on the quay paid much attention.",
    "The clerk wrote it down and went back to his tea.",
    "It rained a little in the evening.",
    "The children from the school came to watch.",
    "By then the market had already closed.",
    "The harbour master nodded and said nothing.",
    "The lamps were lit early that day.",
];
const DAYS: [&str; 7] = ["Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday", "Sunday"];

/// `count` facts (at most ten), each about something else, the answers drawn from `seed`.
pub fn facts(count: usize, seed: u64) -> Vec<Fact> {
    let mut rng = StdRng::seed_from_u64(seed);
    let draw = FACTS.iter().take(count);
    draw.map(|(opening, answers)| {
        let answer = answers[rng.random_range(0..answers.len())].to_owned();
        Fact {
            sentence: format!("{opening} {answer}."),
            question: format!("Remember this: {opening}"),
            answer,
        }
    })
    .collect()
}

/// Sentences of filler, endless.
pub struct Filler {
    rng: StdRng,
}

impl Filler {
    /// The same sentences for the same seed.
    pub fn new(seed: u64) -> Self {
        Self { rng: StdRng::seed_from_u64(seed ^ 0x5eed) }
    }

    /// The next sentences, a short paragraph.
    pub fn paragraph(&mut self) -> String {
        let mut pick = |from: &[&'static str]| *from.choose(&mut self.rng).unwrap_or(&"");
        let (day, vessel, deed, other, second, remark) =
            (pick(&DAYS), pick(&VESSELS), pick(&DEEDS), pick(&VESSELS), pick(&DEEDS), pick(&REMARKS));
        format!("On {day} {vessel} {deed}. Later {other} {second}. {remark}")
    }
}
