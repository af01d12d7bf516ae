//! What each stage of a compilation takes, and a run, on the network that the repository carries and, where the recorded
//! models are beside it, on ResNet-18.
//!
//!     cargo bench --bench stages

use std::{
    hint::black_box,
    path::{Path, PathBuf},
};

use criterion::{Criterion, criterion_group, criterion_main};
use resat::{
    driver::{self, CodeSet, Options, assemble, load_module, load_params},
    egraph::encode,
    extract::{DagGreedy, Extractor, Problem},
    infer::infer_types,
    interp::random_inputs,
    ir::{Module, Name},
    pass::{Pass, PassContext, Settings, bind_params, default_pipeline},
    relay::text,
    rules,
    saturate::saturate,
    target::Target,
    tensor::{Tensor, Value},
};

struct Model {
    name: &'static str,
    text: String,
    module: Module,
}

/// The weights of a model: from its file, or random ones of the parameters' types.
fn weights(folder: &Path, module: &Module) -> Vec<(Name, Tensor)> {
    let file = folder.join("model.params");
    if file.exists() {
        return load_params(&file).expect("the recorded parameters are well formed");
    }
    let typed = infer_types(module.clone()).expect("recorded models are well typed");
    let params = typed.entry("main").expect("models have a main").params.clone();
    let values = random_inputs(&typed, 1).expect("recorded models have known extents");
    // The first parameter is the image; small weights keep activations finite.
    let named = params.into_iter().zip(values).skip(1);
    named
        .map(|(p, v)| {
            let t = v.tensor();
            (module.var(p).name.clone(), Tensor::from_f64_fn(t.dtype(), t.shape(), |i| 0.05 + 0.01 * t.get_f64(i)))
        })
        .collect()
}

fn models() -> Vec<Model> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let shared = std::env::var_os("RESAT_SHARED").map_or_else(|| root.join("../shared"), PathBuf::from);
    [("digits", root.join("models/digits")), ("resnet18", shared.join("corpus/resnet18"))]
        .into_iter()
        .filter(|(name, folder)| {
            let there = folder.join("model.relay").exists();
            if !there {
                eprintln!("{name}: skipped, as {} is not there", folder.display());
            }
            there
        })
        .map(|(name, folder)| {
            let path = folder.join("model.relay");
            let text = std::fs::read_to_string(&path).expect("readable");
            let module = load_module(&path).expect("well formed");
            let module = bind_params(&module, &weights(&folder, &module)).expect("its own parameters");
            Model { name, text, module }
        })
        .collect()
}

fn stages(c: &mut Criterion) {
    let settings = Settings::new(Target::host());
    for m in models() {
        let mut group = c.benchmark_group(m.name);
        group.sample_size(10);
        group.bench_function("parse", |b| b.iter(|| text::parse_module(m.name, black_box(&m.text))));
        let typed = infer_types(m.module.clone()).expect("well typed");
        let rulesets = rules::shipped();
        group.bench_function("saturate", |b| {
            b.iter(|| {
                let mut encoded = encode(&typed);
                for id in encoded.regions().to_vec() {
                    let mut region = encoded.open(id, false);
                    black_box(saturate(&mut region.graph, &rulesets, &settings.limits));
                }
            })
        });
        let mut encoded = encode(&typed);
        let last = *encoded.regions().last().expect("a module has a region");
        let mut region = encoded.open(last, false);
        saturate(&mut region.graph, &rulesets, &settings.limits);
        group.bench_function("extract", |b| {
            b.iter(|| {
                let p = Problem::new(&region.graph, region.root, settings.cost.as_ref(), &settings.target);
                black_box(DagGreedy::default().extract(&p))
            })
        });
        let pipeline = default_pipeline(&settings).expect("the default pipeline is well formed");
        let fused = pipeline.run(m.module.clone(), &mut PassContext::default()).expect("passes run");
        let fused = infer_types(fused).expect("well typed");
        let target = settings.target.codegen();
        let unit = resat::machine::Core::here(&target);
        group.bench_function("lower", |b| {
            b.iter(|| black_box(assemble(&fused, "main", m.name, &mut CodeSet::new(unit)).map(|a| a.calls)))
        });
        group.bench_function("compile", |b| {
            b.iter(|| driver::build(m.module.clone(), &[], Options::new(settings.clone())).map(|b| b.calls))
        });
        let mut options = Options::new(settings.clone());
        options.threads = 1;
        let built = driver::build(m.module.clone(), &[], options).expect("builds");
        let inputs: Vec<Tensor> =
            random_inputs(&typed, 0).expect("known extents").iter().flat_map(Value::flatten).collect();
        let exe = built.executable.as_plain().expect("a plain program");
        let mut outputs = exe.run(&inputs).expect("runs");
        group.bench_function("run, one thread", |b| b.iter(|| exe.run_into(&inputs, &mut outputs)));
        group.finish();
    }
}

criterion_group!(benches, stages);
criterion_main!(benches);
