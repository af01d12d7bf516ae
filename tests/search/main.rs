//! E-graphs, rules, costs and extractors.

mod approx;
mod blocks;
#[path = "../common/mod.rs"]
mod common;
mod corpus_saturate;
mod cost;
mod egraph;
mod extract;
#[path = "../../benches/networks/mod.rs"]
mod networks;
mod recipes;
mod saturate;
#[path = "../common/saturated.rs"]
mod saturated;
mod saturation;
mod tensat;
mod unknown_extents;
