//! What the table finds, and how much work that is.
