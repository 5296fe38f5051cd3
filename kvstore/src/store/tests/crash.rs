//! The plug is pulled.
