//! Networks by recipe: they are what the recipes say.

use std::sync::{Arc, Mutex};

use crate::networks::{TENSAT, bert, counts, layered, resnet50};
use resat::{
    driver::{CodeSet, assemble},
    infer::infer_types,
    ir::Type,
    pass::{Pass, PassContext, Settings, default_pipeline, fuse},
    relay::text,
    runtime::Step,
    saturate::{Became, Extracted, Piece, explain},
    target::Target,
};

#[test]
fn tensat_networks_are_as_published() {
    for published in TENSAT {
        let network = (published.make)();
        let found: Vec<(&str, usize)> = counts(&network.module).into_iter().collect();
        assert_eq!(found, published.counts, "{}", published.name);
        infer_types(network.module).unwrap_or_else(|e| panic!("{}: {e}", published.name));
    }
}

#[test]
fn tensat_networks_end_in_the_shapes_published() {
    let shapes = TENSAT.map(|published| {
        let typed = infer_types((published.make)().module).expect("well typed");
        match typed.result_type("main") {
            Type::Tuple(fields) => format!("{} of {}", fields.len(), fields[0]),
            ty => ty.to_string(),
        }
    });
    let tensor = |shape: &str| format!("Tensor[({shape}), float32]");
    let expected = [
        tensor("1, 512"),
        format!("9 of {}", tensor("64, 1024")),
        tensor("1, 2048, 7, 7"),
        tensor("1, 5120, 7, 7"),
        tensor("1, 1000"),
        tensor("1, 1000"),
        tensor("1, 2048, 1, 1"),
    ];
    assert_eq!(shapes, expected);
}

#[test]
fn networks_can_be_written_and_read() {
    for published in TENSAT {
        let module = (published.make)().module;
        let written = text::print_module(&module);
        let again = text::parse_module(published.name, &written).unwrap_or_else(|e| panic!("{}: {e}", published.name));
        assert_eq!(counts(&module), counts(&again), "{}", published.name);
    }
}

#[test]
fn models_are_of_their_sizes() {
    let resnet = counts(&resnet50([3, 4, 6, 3]).module);
    assert_eq!((resnet["nn.conv2d"], resnet["nn.batch_norm"], resnet["add"]), (53, 53, 17));
    let bert = counts(&bert(12).module);
    assert_eq!((bert["nn.dense"], bert["nn.batch_matmul"], bert["nn.softmax"], bert["erf"]), (72, 24, 12, 12));
    let operators: usize = counts(&layered(5000).module).values().sum();
    assert_eq!(operators, 5000);
}

/// Layouts move nearly every call of a convolutional network: what became of it is followed through them, and parameters have their names.
#[test]
fn a_convolutional_network_is_explained() {
    let mut settings = Settings::new(Target::parse("llvm -mcpu=x86-64-v3 -num-cores=1").expect("a target"));
    settings.limits.explanations = true;
    let network = resnet50([1, 1, 1, 1]);
    let weights = network.weights();
    let module = network.bound(&weights);
    let found: Arc<Mutex<Vec<Piece>>> = Arc::default();
    let pieces = found.clone();
    let on_region = move |mut x: Extracted| {
        x.region.graph.analysis.tables.name_constants(weights.iter().map(|(name, t)| (name, t)));
        pieces.lock().expect("nobody panics").extend(explain(&mut x, &|_| true));
    };
    let mut cx = PassContext { on_region: Some(Box::new(on_region)), ..PassContext::default() };
    default_pipeline(&settings).and_then(|p| p.run(module, &mut cx)).expect("it is optimized");
    let pieces = found.lock().expect("nobody panics");
    let unneeded: Vec<&str> =
        pieces.iter().filter(|p| matches!(p.became, Became::Unneeded)).map(|p| p.was.as_str()).collect();
    assert!(unneeded.is_empty(), "not needed any more: {unneeded:?}");
    assert!(pieces.iter().any(|p| matches!(p.became, Became::Moved { .. })), "nothing is computed in another layout");
    let convolutions: Vec<&str> =
        pieces.iter().map(|p| p.was.as_str()).filter(|was| was.starts_with("nn.conv2d(")).collect();
    assert_eq!(convolutions.len(), counts(&network.module)["nn.conv2d"], "{convolutions:?}");
    let nameless: Vec<&&str> = convolutions.iter().filter(|was| was.contains("float32[")).collect();
    assert!(nameless.is_empty(), "weights without a name: {nameless:?}");
}

/// Memory plans take at most so many times the most bytes that are in use at once.
const LOOSEST_PLAN: f64 = 1.2;

#[test]
fn memory_is_planned_tightly() {
    let settings = Settings::new(Target::parse("llvm -mcpu=x86-64-v3").expect("a target"));
    let unit = settings.target.core();
    let [resnet, bert] = [resnet50([1, 1, 1, 1]), bert(1)];
    let (mut shared, mut complaints) = (0, Vec::new());
    for (name, network) in [("ResNet", resnet), ("BERT", bert)] {
        let mut cx = PassContext::default();
        let module = network.bound(&network.cheap_weights());
        let module = default_pipeline(&settings).and_then(|p| p.run(module, &mut cx)).expect("it is optimized");
        let typed = infer_types(module).and_then(|t| infer_types(fuse(&t, 1))).expect("well typed");
        let program = assemble(&typed, "main", name, &mut CodeSet::new(unit)).expect("a plain program").program;
        let plan = program.plan();
        if plan.arena as f64 > LOOSEST_PLAN * plan.least as f64 {
            complaints.push(format!("{name}: {} bytes, where {} are in use at once", plan.arena, plan.least));
        }
        shared += program.steps().iter().filter(|s| matches!(s, Step::Call(c) if !c.in_place.is_empty())).count();
    }
    assert!(complaints.is_empty(), "{}", complaints.join("\n"));
    assert!(shared > 0, "no result could take the place of an input");
}
