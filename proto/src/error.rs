//! Why a message is refused: always the field, what was found, what is right.

use crate::v1::RowError;
use tonic::{Code, Status};

/// A message that cannot be what its sender meant. Maps to `INVALID_ARGUMENT`.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
pub enum WireError {
    /// A field that must be there is not.
    #[error("{field}: missing")]
    Missing {
        /// Path of the field in the message.
        field: String,
    },
    /// Another element type than the one stored.
    #[error("{field}: dtype is {got}, must be {want}")]
    DType {
        /// Path of the field in the message.
        field: String,
        /// As sent.
        got: String,
        /// As required.
        want: &'static str,
    },
    /// The shape does not fit the geometry of the session.
    #[error("{field}: shape is {got:?}, must be {want}")]
    Shape {
        /// Path of the field in the message.
        field: String,
        /// As sent.
        got: Vec<u64>,
        /// As required, with names for free dimensions.
        want: String,
    },
    /// The bytes do not fill the shape exactly.
    #[error("{field}: {got} bytes of data, the shape needs {want}")]
    Length {
        /// Path of the field in the message.
        field: String,
        /// Bytes sent.
        got: u64,
        /// Bytes the shape needs.
        want: u64,
    },
    /// NaN or an infinity where only numbers are meaningful.
    #[error("{field}{position:?}: {value} is not a finite number")]
    NotFinite {
        /// Path of the field in the message.
        field: String,
        /// Index in every dimension.
        position: Vec<u64>,
        /// What was found: NaN, inf or -inf.
        value: f32,
    },
    /// A number outside its range.
    #[error("{field}: {got}, must be {want}")]
    Range {
        /// Path of the field in the message.
        field: String,
        /// As sent.
        got: String,
        /// As required.
        want: String,
    },
}

impl WireError {
    /// A value outside its range, said in one line.
    pub fn range(field: &str, got: impl ToString, want: impl ToString) -> Self {
        Self::Range { field: field.to_owned(), got: got.to_string(), want: want.to_string() }
    }

    /// A field that must be there.
    pub fn missing(field: &str) -> Self {
        Self::Missing { field: field.to_owned() }
    }
}

impl From<WireError> for Status {
    fn from(e: WireError) -> Self {
        Status::invalid_argument(e.to_string())
    }
}

/// One row's error travels inside the answer, so that its neighbours are still served.
impl From<Status> for RowError {
    fn from(s: Status) -> Self {
        RowError { code: s.code() as i32 as u32, message: s.message().to_owned() }
    }
}

impl From<RowError> for Status {
    fn from(e: RowError) -> Self {
        let code = i32::try_from(e.code).map_or(Code::Unknown, Code::from_i32);
        Status::new(code, e.message)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn row_errors_keep_code_and_text() {
        let s = Status::out_of_range("end 9 is beyond the 8 tokens held");
        let back = Status::from(RowError::from(s.clone()));
        assert_eq!(back.code(), s.code());
        assert_eq!(back.message(), s.message());
        let odd = Status::from(RowError { code: u32::MAX, message: String::new() });
        assert_eq!(odd.code(), Code::Unknown);
    }

    #[test]
    fn one_line_names_field_and_position() {
        let e = WireError::NotFinite { field: "k".into(), position: vec![3, 0, 17], value: f32::NAN };
        assert_eq!(e.to_string(), "k[3, 0, 17]: NaN is not a finite number");
    }
}
