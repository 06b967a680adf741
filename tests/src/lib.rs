//! What end-to-end tests share.
