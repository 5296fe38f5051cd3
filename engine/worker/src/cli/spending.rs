//! `--budget` and `--estimate`: what a step may spend, as every verb and bench reads it.

use clap::{Args, ValueEnum};
use client::Budget;

use crate::decode::Spending;

/// `on` or `off`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Switch {
    /// Yes.
    On,
    /// No.
    Off,
}

impl Switch {
    /// As it is written on the command line.
    pub fn name(self) -> &'static str {
        match self {
            Switch::On => "on",
            Switch::Off => "off",
        }
    }
}

/// What one decode step may spend on the shards.
#[derive(Args, Clone, Copy, Debug)]
pub struct SpendingArgs {
    /// Exactly attended tokens per query head on the shards: a count K, coverage=C, or all
    #[arg(long, value_parser = parse_budget, default_value = "100")]
    pub budget: Budget,
    /// Whether the shards estimate what they did not select
    #[arg(long, value_enum, default_value = "on")]
    pub estimate: Switch,
}

impl SpendingArgs {
    /// The same for the decode loop.
    pub fn spending(&self) -> Spending {
        Spending { budget: self.budget, estimate: self.estimate == Switch::On }
    }
}

/// Exactly attended tokens per query head: K from 1 to 4,294,967,295, `coverage=C` with C in (0, 1], or `all`.
///
/// # Errors
/// One line with what was written and the limit.
pub fn parse_budget(text: &str) -> Result<Budget, String> {
    if text == "all" {
        return Ok(Budget::All);
    }
    if let Some(share) = text.strip_prefix("coverage=") {
        return match share.parse::<f32>() {
            Ok(share) if share > 0.0 && share <= 1.0 => Ok(Budget::Coverage(share)),
            _ => Err(format!("coverage={share}: a share in (0, 1] is needed")),
        };
    }
    match text.parse::<u32>() {
        Ok(k) if k > 0 => Ok(Budget::TopK(k)),
        _ => Err(format!("{text}: K from 1 to {}, coverage=C or all is needed", u32::MAX)),
    }
}

/// [`parse_budget`] for benches that ask an index themselves.
pub fn parse_index_budget(text: &str) -> Result<index::Budget, String> {
    Ok(match parse_budget(text)? {
        Budget::TopK(k) => index::Budget::TopK(k as usize),
        Budget::Coverage(share) => index::Budget::Coverage(share),
        Budget::All => index::Budget::All,
    })
}

/// How a budget is written in output.
pub fn budget_name(budget: Budget) -> String {
    match budget {
        Budget::TopK(k) => k.to_string(),
        Budget::Coverage(share) => format!("coverage={share}"),
        Budget::All => "all".into(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn budgets_parse_and_print_back() {
        for text in ["1", "100", "4294967295", "coverage=0.95", "coverage=1", "all"] {
            assert_eq!(budget_name(parse_budget(text).unwrap()), text);
        }
        for text in ["", "0", "-1", "4294967296", "1.5", "some"] {
            let line = parse_budget(text).unwrap_err();
            assert!(line.starts_with(text) && line.contains("1 to 4294967295"), "{line}");
        }
        for text in ["coverage=0", "coverage=1.5", "coverage=", "coverage=nan", "coverage=-0.5"] {
            let line = parse_budget(text).unwrap_err();
            assert!(line.starts_with(text) && line.contains("(0, 1]"), "{line}");
        }
        assert_eq!(parse_index_budget("7"), Ok(index::Budget::TopK(7)));
        assert!(parse_index_budget("coverage=0").is_err());
    }
}
