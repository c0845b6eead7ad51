//! The flight against a plain model.
