//! Plots: lines, steps, dots and bars over two axes, as SVG.
//!
//! Axes and marks are drawn by plotters in fixed colours; the page's style sheet gives each colour its meaning in light and dark (see
//! [`PALETTE`]). Over them lie invisible marks whose titles a browser shows where the pointer rests.

use std::fmt::Write;

use plotters::{
    coord::Shift,
    prelude::*,
    style::text_anchor::{HPos, Pos, VPos},
};

/// A value of a series.
#[derive(Clone, Debug, PartialEq)]
pub struct Point {
    /// Along the first axis.
    pub x: f64,
    /// Along the second axis.
    pub y: f64,
    /// What is said of it where the pointer rests; its coordinates where nothing is given.
    pub label: Option<String>,
}

impl Point {
    /// A point without a label.
    pub fn new(x: f64, y: f64) -> Point {
        Point { x, y, label: None }
    }

    /// The same point with a label.
    pub fn label(self, label: impl Into<String>) -> Point {
        Point { label: Some(label.into()), ..self }
    }
}

/// Points that belong together.
#[derive(Clone, Debug, PartialEq)]
pub struct Series {
    /// What the legend calls them.
    pub name: String,
    /// The points; those that are not finite are left out.
    pub points: Vec<Point>,
}

impl Series {
    /// A series of that name.
    pub fn new(name: impl Into<String>, points: Vec<Point>) -> Series {
        Series { name: name.into(), points }
    }
}

#[derive(Copy, Clone, Debug, PartialEq)]
enum Marks {
    Line,
    Steps,
    Dots,
    Bars,
    /// A horizontal line at the points' common height.
    Level,
}

/// A plot: what its axes are called, and what is drawn over them, in order.
#[derive(Clone, Debug)]
pub struct Plot {
    x: String,
    y: String,
    layers: Vec<(Marks, Series)>,
    x_from_zero: bool,
    y_from_zero: bool,
}

/// Width and height of a plot, in units of its own; it is shown as wide as there is room.
const SIZE: (u32, u32) = (720, 400);

/// The colours of series, in their order, from the beginning again when they are used up. The style sheet replaces them where the page
/// is dark.
pub(super) const PALETTE: [(RGBColor, &str); 6] = [
    (RGBColor(0x2f, 0x6f, 0xb2), "#7db5ec"),
    (RGBColor(0xd1, 0x5b, 0x2c), "#f2925f"),
    (RGBColor(0x2e, 0x8b, 0x57), "#6fcf97"),
    (RGBColor(0x8a, 0x52, 0xa8), "#c79be0"),
    (RGBColor(0xb0, 0x8a, 0x12), "#e4c24d"),
    (RGBColor(0xb8, 0x3b, 0x5e), "#ee82a2"),
];

/// Axes and words.
pub(super) const INK: (RGBColor, &str) = (RGBColor(0x4a, 0x45, 0x40), "#c9c2b8");

/// Lines behind the marks.
pub(super) const GRID: (RGBColor, &str) = (RGBColor(0xe6, 0xe0, 0xd8), "#3a3733");

/// A colour as plotters writes it.
pub(super) fn hex(c: RGBColor) -> String {
    format!("#{:02X}{:02X}{:02X}", c.0, c.1, c.2)
}

impl Plot {
    /// An empty plot over these axes; units belong into their names.
    pub fn new(x: impl Into<String>, y: impl Into<String>) -> Plot {
        Plot { x: x.into(), y: y.into(), layers: Vec::new(), x_from_zero: false, y_from_zero: false }
    }

    /// Axes that begin at zero, where all values are positive.
    pub fn from_zero(self, x: bool, y: bool) -> Plot {
        Plot { x_from_zero: x, y_from_zero: y, ..self }
    }

    fn with(mut self, marks: Marks, series: Series) -> Plot {
        self.layers.push((marks, series));
        self
    }

    /// Points joined by straight lines.
    pub fn line(self, series: Series) -> Plot {
        self.with(Marks::Line, series)
    }

    /// Each value holds until the next.
    pub fn steps(self, series: Series) -> Plot {
        self.with(Marks::Steps, series)
    }

    /// A dot for each point.
    pub fn scatter(self, series: Series) -> Plot {
        self.with(Marks::Dots, series)
    }

    /// A bar from zero for each point, a unit apart.
    pub fn bars(self, series: Series) -> Plot {
        self.with(Marks::Bars, Series::new(series.name, series.points)).zero_included()
    }

    /// A horizontal line across the plot.
    pub fn level(self, name: impl Into<String>, y: f64) -> Plot {
        self.with(Marks::Level, Series::new(name, vec![Point::new(f64::NAN, y)]))
    }

    fn zero_included(self) -> Plot {
        Plot { y_from_zero: true, ..self }
    }

    /// Whether there is anything to see.
    pub fn is_empty(&self) -> bool {
        self.layers.iter().all(|(m, s)| *m == Marks::Level || s.points.iter().all(|p| !finite(p)))
    }

    /// The plot as an SVG element. Where there is nothing to draw, the axes alone.
    pub fn svg(&self) -> String {
        let mut svg = String::new();
        let mut titles = String::new();
        // A string as back end does not fail.
        draw(self, &SVGBackend::with_string(&mut svg, SIZE).into_drawing_area(), &mut titles)
            .unwrap_or_else(|e| titles = format!("<!-- {} -->", escaped(&e.to_string())));
        let end = svg.rfind("</svg>").unwrap_or(svg.len());
        // The page scales it: width and height of its own would be in the way.
        let (w, h) = SIZE;
        let head = format!("<svg width=\"{w}\" height=\"{h}\" ");
        let body = svg[..end].replacen(&head, "<svg role=\"img\" ", 1);
        format!("{body}<g class=\"titles\">\n{titles}</g>\n</svg>\n")
    }
}

fn finite(p: &Point) -> bool {
    p.x.is_finite() && p.y.is_finite()
}

/// Text as it may stand in markup.
pub(super) fn escaped(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;").replace('"', "&quot;")
}

/// A number in few digits.
fn short(v: f64) -> String {
    let text = match v.abs() {
        0.0 => return "0".into(),
        m if !(1e-4..1e6).contains(&m) => return format!("{v:.1e}"),
        m => format!("{v:.*}", (3 - m.log10().floor() as i32).clamp(0, 7) as usize),
    };
    match text.contains('.') {
        true => text.trim_end_matches('0').trim_end_matches('.').to_owned(),
        false => text,
    }
}

/// From the least to the greatest value, with some room around, and with zero where it is asked for.
fn range(values: impl Iterator<Item = f64>, zero: bool, room: f64) -> (f64, f64) {
    let values: Vec<f64> = values.filter(|v| v.is_finite()).collect();
    if values.is_empty() {
        return (0.0, 1.0);
    }
    let mut low = values.iter().copied().fold(f64::INFINITY, f64::min);
    let mut high = values.iter().copied().fold(f64::NEG_INFINITY, f64::max);
    let keeps = |v: f64| zero && v >= 0.0;
    let from_zero = keeps(low);
    if from_zero {
        low = 0.0;
    }
    let span = if high > low { high - low } else { high.abs().max(1e-9) };
    high += room * span;
    if !from_zero {
        low -= room * span;
    }
    (low, high)
}

type Drawn = Result<(), Box<dyn std::error::Error>>;

fn draw(plot: &Plot, root: &DrawingArea<SVGBackend, Shift>, titles: &mut String) -> Drawn {
    let points = || plot.layers.iter().flat_map(|(_, s)| &s.points);
    let bars = plot.layers.iter().any(|(m, _)| *m == Marks::Bars);
    let (mut x0, mut x1) = range(points().map(|p| p.x), plot.x_from_zero, 0.03);
    if bars {
        (x0, x1) = (x0 - 0.5, x1 + 0.5);
    }
    let (y0, y1) = range(points().map(|p| p.y), plot.y_from_zero, 0.08);
    let ink = |size: i32| ("sans-serif", size).into_font().color(&INK.0);
    let named: Vec<&(Marks, Series)> = plot.layers.iter().filter(|(_, s)| !s.name.is_empty()).collect();
    let mut chart = ChartBuilder::on(root)
        .margin(10)
        .margin_right(18)
        .margin_top(if named.is_empty() { 10 } else { 34 })
        .x_label_area_size(44)
        .y_label_area_size(72)
        .build_cartesian_2d(x0..x1, y0..y1)?;
    chart
        .configure_mesh()
        .x_desc(&plot.x)
        .y_desc(&plot.y)
        .x_labels(8)
        .y_labels(6)
        .x_label_formatter(&|v| short(*v))
        .y_label_formatter(&|v| short(*v))
        .axis_style(INK.0)
        .bold_line_style(GRID.0)
        .light_line_style(TRANSPARENT)
        .label_style(ink(13))
        .axis_desc_style(ink(14))
        .draw()?;
    for (i, (marks, series)) in plot.layers.iter().enumerate() {
        let colour = PALETTE[i % PALETTE.len()].0;
        let points: Vec<&Point> = series.points.iter().filter(|p| finite(p)).collect();
        let at = |p: &Point| (p.x, p.y);
        match marks {
            Marks::Line => {
                chart.draw_series(LineSeries::new(points.iter().map(|p| at(p)), colour.stroke_width(2)))?;
                chart.draw_series(points.iter().map(|p| Circle::new(at(p), 2, colour.filled())))?;
            }
            Marks::Steps => {
                let corners = points.windows(2).flat_map(|w| [at(w[0]), (w[1].x, w[0].y)]);
                let corners = corners.chain(points.last().map(|p| at(p)));
                chart.draw_series(LineSeries::new(corners, colour.stroke_width(2)))?;
            }
            Marks::Dots => {
                chart.draw_series(points.iter().map(|p| Circle::new(at(p), 4, colour.mix(0.75).filled())))?;
            }
            Marks::Bars => {
                let bar = |p: &&Point| Rectangle::new([(p.x - 0.4, 0.0), (p.x + 0.4, p.y)], colour.filled());
                chart.draw_series(points.iter().map(bar))?;
            }
            Marks::Level => {
                let ys = series.points.iter().map(|p| p.y).filter(|y| y.is_finite());
                for y in ys {
                    let ends = [(x0, y), (x1, y)];
                    chart.draw_series(DashedLineSeries::new(ends, 6, 4, colour.stroke_width(2)))?;
                }
            }
        }
        for p in points {
            let (x, y) = chart.backend_coord(&at(p));
            let text = p.label.clone().unwrap_or_else(|| format!("{}, {}", short(p.x), short(p.y)));
            let title = escaped(&text);
            writeln!(
                titles,
                "<circle cx=\"{x}\" cy=\"{y}\" r=\"7\" fill=\"transparent\"><title>{title}</title></circle>"
            )?;
        }
    }
    legend(root, &plot.layers)
}

/// The names of the series, in a row above the plot.
fn legend(root: &DrawingArea<SVGBackend, Shift>, layers: &[(Marks, Series)]) -> Drawn {
    // Widths of words are estimated: an SVG's fonts are known to who shows it only.
    const WIDTH: f64 = 6.4;
    let mut x = 84.0;
    for (i, (marks, series)) in layers.iter().enumerate().filter(|(_, (_, s))| !s.name.is_empty()) {
        let colour = PALETTE[i % PALETTE.len()].0;
        let (left, y) = (x as i32, 20);
        match marks {
            Marks::Dots => root.draw(&Circle::new((left + 8, y), 4, colour.filled()))?,
            Marks::Bars => root.draw(&Rectangle::new([(left, y - 5), (left + 16, y + 5)], colour.filled()))?,
            Marks::Line | Marks::Steps | Marks::Level => {
                root.draw(&PathElement::new(vec![(left, y), (left + 18, y)], colour.stroke_width(2)))?
            }
        }
        let style = ("sans-serif", 13).into_font().color(&INK.0).pos(Pos::new(HPos::Left, VPos::Center));
        root.draw(&Text::new(series.name.clone(), (left + 24, y), style))?;
        x += 44.0 + WIDTH * series.name.chars().count() as f64;
    }
    root.present()?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_kind_of_marks_is_drawn() {
        let points = |n: usize| (0..n).map(|i| Point::new(i as f64, (i * i) as f64).label(format!("<{i}>"))).collect();
        let plot = Plot::new("x", "y & z")
            .from_zero(true, true)
            .line(Series::new("line", points(3)))
            .steps(Series::new("steps", points(4)))
            .scatter(Series::new("dots", points(5)))
            .bars(Series::new("bars", points(2)))
            .level("level", 3.0);
        let svg = plot.svg();
        assert!(svg.starts_with("<svg role=\"img\" viewBox=") && svg.trim_end().ends_with("</svg>"), "{svg}");
        assert_eq!(svg.matches("<title>").count(), 14);
        assert!(svg.contains("&lt;1&gt;") && svg.contains("y &amp; z"), "{svg}");
        for (colour, _) in &PALETTE[..5] {
            assert!(svg.contains(&hex(*colour)), "{colour:?}");
        }
    }

    #[test]
    fn what_is_not_finite_is_left_out() {
        let plot = Plot::new("x", "y").scatter(Series::new("", vec![Point::new(1.0, f64::NAN), Point::new(1.0, 1.0)]));
        assert_eq!(plot.svg().matches("<title>").count(), 1);
        let nothing = Plot::new("x", "y").scatter(Series::new("", Vec::new())).level("at", 2.0);
        assert!(nothing.is_empty() && nothing.svg().contains("</svg>"));
    }

    #[test]
    fn numbers_are_short() {
        let cases = [(0.0, "0"), (1.0, "1"), (12.5, "12.5"), (0.00123, "0.00123"), (1234.0, "1234"), (3e-9, "3.0e-9")];
        for (v, text) in cases {
            assert_eq!(short(v), text);
        }
        assert_eq!(range([2.0, 4.0].into_iter(), true, 0.0), (0.0, 4.0));
        assert_eq!(range([].into_iter(), false, 0.1), (0.0, 1.0));
    }
}
