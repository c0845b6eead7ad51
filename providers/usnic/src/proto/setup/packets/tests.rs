//! Every packet through its bytes, cut and damaged.
