//! The real `balance` in a virtual world.
