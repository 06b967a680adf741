//! What became of each object, as Gateway API's conditions say it.

/// What became of one object.
#[derive(Clone, Debug, PartialEq)]
pub enum Status {}
