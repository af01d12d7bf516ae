//! Pages for people: HTML files that hold all they show, plots as SVG included. Nothing here knows what is reported.
//!
//! ```
//! use resat_ir::report::{Page, Plot, Point, Series};
//!
//! let points = (1..=8).map(|n| Point::new(n as f64, 1.0 / n as f64).label(format!("{n} threads"))).collect();
//! let plot = Plot::new("threads", "seconds").line(Series::new("measured", points));
//! let html = Page::new("Scaling").lead("How latency falls with threads.").figure("Latency", "Lower is better.", &plot).render();
//! assert!(html.starts_with("<!DOCTYPE html>") && html.contains("<svg"));
//! ```

mod page;
mod plot;

pub use page::{Cell, Page, Table};
pub use plot::{Plot, Point, Series};
