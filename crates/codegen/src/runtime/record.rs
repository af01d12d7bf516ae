//! Programs as data that can be written down and read back.

use std::sync::Arc;

use serde::{Deserialize, Serialize};

use super::program::{BufferId, Call, Estimate, FunctionId, Port, Program, Source, Step};
use crate::tensor::{DType, Shape, Tensor};

/// A [`Program`] but for the data of its constants.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ProgramRecord {
    name: String,
    inputs: Vec<PortRecord>,
    outputs: Vec<(PortRecord, u32)>,
    constants: Vec<ConstantRecord>,
    /// What they hold (0: an input, 1: a constant, 2: what a step writes), that input's or constant's number, bytes.
    buffers: Vec<(u8, usize, usize)>,
    functions: Vec<String>,
    steps: Vec<CallRecord>,
}

/// A constant of a [`ProgramRecord`].
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ConstantRecord {
    /// Element type.
    pub dtype: String,
    /// Extents.
    pub shape: Vec<usize>,
    /// Where its data is, as whoever wrote the record says.
    pub at: usize,
}

/// Name, element type, extents, alias.
type PortRecord = (String, String, Vec<usize>, Option<String>);

/// Function, arguments and whether they are written, workspace, pairs that may be the same memory, what it is expected to take.
type CallRecord = (u32, Vec<(u32, bool)>, usize, Vec<(u32, u32)>, EstimateRecord);

/// Operations, bytes, type of the factors, cycles.
type EstimateRecord = (f64, f64, Option<String>, f64);

fn port_record(p: &Port) -> PortRecord {
    (p.name.to_string(), p.dtype.to_string(), p.shape.to_vec(), p.alias.as_ref().map(|a| a.to_string()))
}

fn port((name, dtype, shape, alias): &PortRecord) -> Option<Port> {
    let port = Port::new(alias.as_ref().unwrap_or(name), dtype.parse::<DType>().ok()?, shape);
    Some(port.called(name))
}

impl Program {
    /// The program as a record. `place` says where the data of a constant is going to be.
    pub fn record(&self, mut place: impl FnMut(&Tensor) -> usize) -> ProgramRecord {
        let constant =
            |t: &Tensor| ConstantRecord { dtype: t.dtype().to_string(), shape: t.shape().to_vec(), at: place(t) };
        let buffer = |&(source, bytes): &(Source, usize)| match source {
            Source::Input(n) => (0, n, bytes),
            Source::Constant(n) => (1, n, bytes),
            Source::Step => (2, 0, bytes),
            Source::Part(..) => unreachable!("programs that append to what they keep are not written down"),
        };
        let call = |(Step::Call(c), estimate): (&Step, Estimate)| {
            let args = c.args.iter().map(|a| (a.0.0, a.1)).collect();
            let Estimate { operations, bytes, factors, cycles } = estimate;
            let pairs = c.in_place.iter().map(|p| (p.0.0, p.1.0)).collect();
            (c.function.0, args, c.workspace, pairs, (operations, bytes, factors.map(|f| f.to_string()), cycles))
        };
        ProgramRecord {
            name: self.name.to_string(),
            inputs: self.inputs.iter().map(port_record).collect(),
            outputs: self.outputs.iter().map(|(p, b)| (port_record(p), b.0)).collect(),
            constants: self.constants.iter().map(constant).collect(),
            buffers: self.buffers.iter().map(buffer).collect(),
            functions: self.functions.iter().map(|f| f.to_string()).collect(),
            steps: self.steps.iter().zip(self.step_estimates()).map(call).collect(),
        }
    }

    /// The program of a record. `constant` gives each constant. None where the record contradicts itself or its constants.
    pub fn from_record(r: &ProgramRecord, constant: impl FnMut(&ConstantRecord) -> Option<Tensor>) -> Option<Program> {
        let mut program = Program::new(&r.name);
        program.inputs = r.inputs.iter().map(port).collect::<Option<_>>()?;
        program.constants = r.constants.iter().map(constant).collect::<Option<_>>()?;
        program.functions = Arc::new(r.functions.iter().map(Into::into).collect());
        for &(kind, number, bytes) in &r.buffers {
            let (source, size) = match kind {
                0 => (Source::Input(number), program.inputs.get(number)?.bytes()),
                1 => (Source::Constant(number), program.constants.get(number)?.bytes().len()),
                2 => (Source::Step, bytes),
                _ => return None,
            };
            (size == bytes).then(|| program.buffers.push((source, bytes)))?;
        }
        let buffer = |id: u32| program.buffers.get(id as usize).map(|b| (BufferId(id), *b));
        let mut outputs = Vec::new();
        for (p, id) in &r.outputs {
            let (p, (id, (_, bytes))) = (port(p)?, buffer(*id)?);
            (p.bytes() == bytes).then(|| outputs.push((p, id)))?;
        }
        let mut steps = Vec::new();
        for (function, args, workspace, pairs, (operations, moved, factors, cycles)) in &r.steps {
            ((*function as usize) < program.functions.len()).then_some(())?;
            let arg = |&(id, written): &(u32, bool)| {
                let (id, (source, _)) = buffer(id)?;
                (!written || source == Source::Step).then_some((id, written))
            };
            steps.push(Step::Call(Call {
                function: FunctionId(*function),
                args: args.iter().map(arg).collect::<Option<_>>()?,
                workspace: *workspace,
                in_place: pairs.iter().map(|p| Some((buffer(p.0)?.0, buffer(p.1)?.0))).collect::<Option<_>>()?,
                estimate: Estimate {
                    operations: *operations,
                    bytes: *moved,
                    factors: factors.as_ref().map(|f| f.parse().ok()).map_or(Some(None), |f| f.map(Some))?,
                    cycles: *cycles,
                },
            }));
        }
        (program.outputs, program.steps) = (outputs, Arc::new(steps));
        Some(program)
    }
}

impl ConstantRecord {
    /// The type of the constant; none where it has none that is known.
    pub fn ty(&self) -> Option<(DType, Shape)> {
        Some((self.dtype.parse().ok()?, Shape::from_slice(&self.shape)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn program() -> Program {
        let mut p = Program::new("net");
        let x = p.input(Port::new("x", DType::F32, &[4]));
        let c = p.constant(Tensor::from_slice(&[4], &[1f32, 2.0, 3.0, 4.0]));
        let y = p.buffer(16);
        let function = p.function("add");
        let args = vec![(x, false), (c, false), (y, true)];
        let estimate = Estimate { operations: 4.0, bytes: 48.0, factors: Some(DType::F32), cycles: 1.5 };
        p.step(Step::Call(Call { function, args, workspace: 64, in_place: vec![(x, y)], estimate }));
        p.output(Port::new("0", DType::F32, &[2, 2]), y);
        p
    }

    #[test]
    fn programs_come_back() {
        let p = program();
        let record = p.record(|_| 7);
        let text = serde_json::to_string(&record).expect("a record is data");
        let record: ProgramRecord = serde_json::from_str(&text).expect("it is one");
        let back = Program::from_record(&record, |c| (c.at == 7).then(|| p.constants[0].clone())).expect("it is whole");
        assert_eq!(format!("{back:?}"), format!("{p:?}"));
    }

    #[test]
    fn contradictions_are_seen() {
        let p = program();
        let whole = p.record(|_| 0);
        let read = |r: &ProgramRecord| Program::from_record(r, |_| Some(p.constants[0].clone())).is_some();
        assert!(read(&whole));
        let mut wrong = vec![whole.clone(); 5];
        wrong[0].steps[0].0 = 1;
        wrong[1].steps[0].1[0].0 = 3;
        wrong[2].steps[0].1[0].1 = true;
        wrong[3].buffers[1].2 = 8;
        wrong[4].outputs[0].1 = 9;
        assert!(wrong.iter().all(|r| !read(r)));
        assert!(Program::from_record(&whole, |_| None).is_none());
    }
}
