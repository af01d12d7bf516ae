//! What quantizing a program's layers does, as text and JSON.

use std::fmt;

use serde_json::{Value, json};

use crate::ir::Name;

/// What quantizing one layer does.
#[derive(Clone, Debug)]
pub struct LayerStudy {
    /// The layer's number, from 0 in the order of execution.
    pub number: usize,
    /// What its weight is called, else its operator.
    pub name: Name,
    /// Its operator.
    pub op: Name,
    /// Where it stands in the source, where that is known.
    pub place: Option<String>,
    /// The program's error where this layer alone is quantized; none where it was not chosen or can't be.
    pub error: Option<f64>,
    /// By how much the cost model then prices the program less; none as above.
    pub gain: Option<f64>,
}

/// A program between all floats and all integers.
#[derive(Clone, Debug)]
pub struct Point {
    /// Its price by the cost model.
    pub cost: f64,
    /// Its error as predicted: the sum of its layers'.
    pub predicted: f64,
    /// Its error on the samples, its layers quantized and back.
    pub measured: f64,
    /// The numbers of the layers that are quantized.
    pub quantized: Vec<usize>,
}

/// What quantization does to a program, layer by layer, and what there is to choose between. Errors are shares of the greatest
/// magnitude of the program's result.
#[derive(Clone, Debug)]
pub struct Study {
    /// The cost model.
    pub model: String,
    /// The price of the program in floats.
    pub cost: f64,
    /// Samples that it ran on.
    pub samples: usize,
    /// The layers.
    pub layers: Vec<LayerStudy>,
    /// The programs that are worth a thought, from exact to cheap: none is worse than another in both price and predicted error.
    pub points: Vec<Point>,
}

impl Study {
    /// The study as JSON.
    pub fn to_json(&self) -> Value {
        let layers = self.layers.iter().map(|l| {
            json!({
                "layer": l.number, "name": l.name.as_str(), "operator": l.op.as_str(), "place": l.place,
                "error": l.error, "gain": l.gain,
            })
        });
        let points = self.points.iter().map(|p| {
            json!({
                "cost": p.cost, "predicted_error": p.predicted, "measured_error": p.measured, "quantized": p.quantized,
            })
        });
        json!({
            "cost_model": self.model, "cost": self.cost, "samples": self.samples,
            "layers": layers.collect::<Vec<_>>(), "curve": points.collect::<Vec<_>>(),
        })
    }
}

impl fmt::Display for Study {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let number = |x: Option<f64>| x.map_or("-".to_owned(), |x| format!("{x:.3e}"));
        writeln!(
            f,
            "cost of the float program by {}: {:.6e}; errors are measured on {} samples",
            self.model, self.cost, self.samples
        )?;
        writeln!(f, "\n{:>5}  {:28} {:20} {:>11} {:>11}  place", "layer", "name", "operator", "error", "gain")?;
        for l in &self.layers {
            writeln!(
                f,
                "{:5}  {:28} {:20} {:>11} {:>11}  {}",
                l.number,
                l.name.as_str(),
                l.op.as_str(),
                number(l.error),
                number(l.gain),
                l.place.as_deref().unwrap_or("-"),
            )?;
        }
        writeln!(f, "\n{:>13} {:>11} {:>11}  quantized layers", "cost", "predicted", "measured")?;
        for p in &self.points {
            let quantized = match p.quantized.len() {
                0 => "none".to_owned(),
                _ => p.quantized.iter().map(usize::to_string).collect::<Vec<_>>().join(" "),
            };
            writeln!(f, "{:13.6e} {:11.3e} {:11.3e}  {quantized}", p.cost, p.predicted, p.measured)?;
        }
        Ok(())
    }
}
