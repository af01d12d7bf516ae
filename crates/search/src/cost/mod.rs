//! What a program costs, node by node. A cost model sees facts of one e-node, not its syntax; extraction adds up.
//!
//! There are two levels. By operators ([`CostModel::cost`]), models guess what later fusion will make of each. By kernels
//! ([`CostModel::kernel`]), where the ruleset `fusion` runs, the candidates are whole kernels, and prices are theirs.
//!
//! Models are named on the command line as [`parse`] reads them: one of [`names`], or a weighted sum of several.

mod calls;
mod checked;
mod counts;
mod fused;
mod guess;
mod integers;
mod kernel;
mod legal;
mod measured;
mod penalized;
mod precision;
mod roofline;
mod spec;
mod table;
mod weighted;

pub use calls::Calls;
pub(crate) use checked::Checked;
pub use counts::{Flops, NodeCount};
pub use integers::Integers;
pub use kernel::{KernelCall, KernelView, Source};
pub use legal::Legal;
pub use measured::Measured;
pub use penalized::Penalized;
pub use precision::Precision;
pub use roofline::{MeasuredRoofline, Roofline};
pub use spec::{names, parse};
pub use table::Table;
pub use weighted::Weighted;

use crate::{
    ir::{Attrs, Module, OpId, Type},
    target::{Peaks, Target},
};

/// What an e-node is, for a cost model. Leaves never reach one: they cost nothing.
#[derive(Clone, Copy, Debug)]
pub enum Head<'a> {
    /// A call of an operator.
    Op(OpId, &'a Attrs),
    /// A tuple.
    Tuple,
    /// A field of a tuple.
    Proj(u32),
    /// An expression that is carried through: a closure, branch, call of a function, and so on.
    Carried {
        /// What the regions inside cost by the same model, each counted once.
        bodies: f64,
    },
}

/// The facts of one e-node that a cost model may use.
#[derive(Clone, Debug)]
pub struct NodeView<'a> {
    /// What it is.
    pub head: Head<'a>,
    /// The arguments' types.
    pub args: &'a [Type],
    /// For each argument, whether it can be computed before the program runs.
    pub constant: &'a [bool],
    /// The result's type.
    pub out: &'a Type,
    /// The machine.
    pub target: &'a Target,
}

/// Gives nodes a price: seconds, or any other number that is not negative. An infinite one says that the node can't be
/// had on the target.
///
/// What can be computed before the program runs (a node all of whose arguments are constants) is not asked for: it is
/// free under every model.
///
/// A model of one's own is a few lines. This one minimizes the bytes of intermediate results:
///
/// ```
/// use resat::cost::{CostModel, Head, NodeView};
///
/// struct ResultBytes;
///
/// impl CostModel for ResultBytes {
///     fn name(&self) -> &str {
///         "result-bytes"
///     }
///     fn cost(&self, node: &NodeView) -> f64 {
///         match node.head {
///             Head::Op(..) => node.out.flatten().map_or(0.0, |ts| ts.iter().filter_map(|t| t.bytes()).sum::<i64>() as f64),
///             Head::Carried { bodies } => bodies,
///             Head::Tuple | Head::Proj(_) => 0.0,
///         }
///     }
/// }
///
/// # use std::sync::Arc;
/// # use resat::{pass::{default_pipeline, Pass, PassContext, Settings}, relay::text, target::Target};
/// # fn main() -> Result<(), resat::diag::Refused> {
/// let mut settings = Settings::new(Target::host());
/// settings.cost = Arc::new(ResultBytes);
/// let module = text::parse_module(
///     "example.relay",
///     r#"#[version = "0.0.5"]
///     def @main(%x: Tensor[(2, 3), float32]) { transpose(transpose(%x, axes=[1, 0]), axes=[1, 0]) }"#,
/// )?;
/// let mut cx = PassContext::default();
/// default_pipeline(&settings)?.run(module, &mut cx)?;
/// assert_eq!((cx.reports[0].cost_before, cx.reports[0].cost_after), (48.0, 0.0));
/// # Ok(())
/// # }
/// ```
pub trait CostModel: Send + Sync {
    /// The model's name, as reports and the command line use it.
    fn name(&self) -> &str;

    /// The models whose prices this one adds to or changes. They hear of what it is [asked next](CostModel::prepare), and their
    /// [notes](CostModel::notes) are its own.
    fn wrapped(&self) -> Vec<&dyn CostModel> {
        Vec::new()
    }

    /// All that decides the model's prices beside what it is asked about, as text: parameters, the content of files. Programs that the
    /// model had a part in are kept on disk under it. A model that can't say (the default), or whose prices change from one run to the
    /// next, gives none; its programs are not kept.
    fn fingerprint(&self) -> Option<String> {
        None
    }

    /// The price of one evaluation of the node, its arguments not included.
    fn cost(&self, node: &NodeView) -> f64;

    /// Whether the model would rather hear of many nodes at once, by [`CostModel::prepare`], before it is asked for the price of each.
    fn prepares(&self) -> bool {
        self.wrapped().iter().any(|m| m.prepares())
    }

    /// Nodes that the model is about to be asked for, where it [wants](CostModel::prepares) to know.
    fn prepare(&self, nodes: &[NodeView]) {
        self.wrapped().iter().filter(|m| m.prepares()).for_each(|m| m.prepare(nodes));
    }

    /// The price of a whole kernel, its arguments not included. It is asked for where the ruleset `fusion` forms kernels: then every
    /// operator is in one, by itself or with others. A model that knows nothing of kernels adds up the calls.
    fn kernel(&self, kernel: &KernelView) -> f64 {
        kernel.nodes().map(|node| self.cost(&node)).sum()
    }

    /// The price of what an external compiler makes as part of one of its regions: no call and no crossing of the region's
    /// border is in it. It is asked for where placement offers programs to external compilers; a model that knows nothing of
    /// them, or not of this one, says that it can't be had.
    fn placed(&self, _by: &External, _kernel: &KernelView) -> f64 {
        f64::INFINITY
    }

    /// The price of a value's way into a region of an external compiler, or out of one.
    fn crossing(&self, _crossing: &Crossing) -> f64 {
        f64::INFINITY
    }

    /// Whether the model would rather measure what it has guessed the price of, now that it is about to be chosen: it has done so
    /// when it says yes, and prices are worth asking for again. `by` is none for resat's own code.
    fn refine(&self, _by: Option<&External>, _kernel: &KernelView) -> bool {
        false
    }

    /// A program's price as reports show it; none where a pass adds penalties to prices, which say nothing of the machine.
    fn reported(&self, price: f64) -> Option<f64> {
        Some(price)
    }

    /// What the prices given so far rest on that a user should know, such as which operators could not be measured.
    fn notes(&self) -> Vec<String> {
        self.wrapped().iter().flat_map(|m| m.notes()).collect()
    }
}

/// Who makes a part of a program that is not resat's own.
#[derive(Copy, Clone, PartialEq, Eq, Hash, Debug)]
pub struct External<'a> {
    /// The compiler.
    pub compiler: &'a str,
    /// What it calls such a part, where it is one of its composites.
    pub composite: Option<&'a str>,
}

/// A value at the border of an external compiler's regions.
#[derive(Clone, Debug)]
pub struct Crossing<'a> {
    /// The compiler.
    pub compiler: &'a str,
    /// Whether the value goes in; it comes out otherwise.
    pub inwards: bool,
    /// Its type.
    pub ty: &'a Type,
    /// Whether it can be computed before the program runs: then its way in is gone before the program runs, too.
    pub constant: bool,
    /// The machine.
    pub target: &'a Target,
}

/// Why a program has no time.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum TimerError {
    /// No code could be made of it: what it is refused for.
    #[error("{0}")]
    Build(String),
    /// It was built, and a run of it failed.
    #[error("{0}")]
    Run(String),
    /// What a timer says of it.
    #[error("{0}")]
    Failed(String),
}

impl From<String> for TimerError {
    fn from(message: String) -> TimerError {
        TimerError::Failed(message)
    }
}

impl From<&str> for TimerError {
    fn from(message: &str) -> TimerError {
        TimerError::Failed(message.to_owned())
    }
}

/// What times programs on a machine, for models that measure. The driver has one, `driver::Stopwatch`.
pub trait Timer: Send + Sync {
    /// Seconds that a warm run of the module's `main` takes, a group of operators fused where it can be. `Err` says why it
    /// can't be timed.
    fn seconds(&self, program: &Module) -> Result<f64, TimerError>;

    /// The same for several programs that are to be told apart. Where they are timed in turns, whatever disturbs the machine
    /// disturbs all alike; programs that are clearly slower than another may be timed less often. The times are only worth
    /// comparing with each other.
    fn race(&self, programs: &[&Module]) -> Vec<Result<f64, TimerError>> {
        programs.iter().map(|p| self.seconds(p)).collect()
    }

    /// What a user should know of the times given so far.
    fn notes(&self) -> Vec<String> {
        Vec::new()
    }

    /// What one core of the machine reaches.
    fn peaks(&self) -> Result<Peaks, TimerError>;
}
