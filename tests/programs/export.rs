//! Exported libraries, called from C and loaded back.

use std::{
    path::{Path, PathBuf},
    process::Command,
    sync::Arc,
};

use resat::{
    runtime::{
        Call, Estimate, Executable, LoadedModel, Pool, Port, Program, SharedLibrary, Step, export::export_library,
    },
    tensor::{DType, Tensor},
};

const ROWS: usize = 64;
const DEPTH: usize = 32;
const COLUMNS: usize = 48;

pub(crate) fn source(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/export").join(name)
}

pub(crate) fn cc(args: &[&str], paths: &[&Path]) {
    let output = Command::new("cc").args(args).args(paths).output().expect("the system has a C compiler");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
}

/// `relu(x w)`, and `x` itself.
fn program() -> Program {
    let mut p = Program::new("net");
    let x = p.input(Port::new("x", DType::F32, &[ROWS, DEPTH]));
    let w = p.constant(weights());
    let product = p.buffer(ROWS * COLUMNS * 4);
    let y = p.buffer(ROWS * COLUMNS * 4);
    let (matmul, relu) = (p.function("matmul"), p.function("relu"));
    let args = vec![(x, false), (w, false), (product, true)];
    p.step(Step::Call(Call { function: matmul, args, workspace: 0, in_place: vec![], estimate: Estimate::default() }));
    let args = vec![(product, false), (y, true)];
    p.step(Step::Call(Call {
        function: relu,
        args,
        workspace: ROWS * COLUMNS * 4,
        in_place: vec![],
        estimate: Estimate::default(),
    }));
    p.output(Port::new("0", DType::F32, &[ROWS, COLUMNS]), y);
    p.output(Port::new("1", DType::F32, &[ROWS, DEPTH]), x);
    p
}

fn weights() -> Tensor {
    Tensor::from_f64_fn(DType::F32, &[DEPTH, COLUMNS], |i| ((i * 5) % 11) as f64 - 5.0)
}

fn input() -> Tensor {
    Tensor::from_f64_fn(DType::F32, &[ROWS, DEPTH], |i| (i % 7) as f64 - 3.0)
}

/// The output, and its sum as the C program prints it.
fn expected() -> (Tensor, String) {
    let (x, w) = (input(), weights());
    let dot = |i, j| (0..DEPTH).map(|k| x.get_f64(i * DEPTH + k) * w.get_f64(k * COLUMNS + j)).sum::<f64>();
    let y = Tensor::from_f64_fn(DType::F32, &[ROWS, COLUMNS], |i| dot(i / COLUMNS, i % COLUMNS).max(0.0));
    let sum: f64 = y.to_f64_vec().iter().sum();
    (y, format!("{sum:.3}"))
}

fn exported(dir: &Path) -> PathBuf {
    let object = dir.join("kernels.o");
    cc(&["-O2", "-fPIC", "-c", "-o"], &[&object, &source("kernels.c")]);
    let object = std::fs::read(&object).expect("the object was written");
    let library = dir.join("libnet.so");
    let files = export_library(&program(), &[&object], &library).expect("it can be exported");
    std::fs::rename(&files.header, dir.join("net.h")).expect("the header was written");
    library
}

#[test]
fn a_c_program_calls_it() {
    let dir = tempfile::tempdir().expect("a temporary folder");
    exported(dir.path());
    let binary = dir.path().join("main");
    let include = format!("-I{}", dir.path().display());
    let folder = format!("-L{}", dir.path().display());
    let rpath = format!("-Wl,-rpath,{}", dir.path().display());
    let flags = ["-std=c11", "-Wall", "-Wextra", "-Werror", &include, "-o"];
    cc(
        &[
            &flags[..],
            &[&binary.display().to_string(), &source("main.c").display().to_string(), &folder, &rpath, "-lnet"],
        ]
        .concat(),
        &[],
    );
    let output = Command::new(&binary).output().expect("it was linked");
    assert_eq!(output.status.code(), Some(0));
    let sum = expected().1;
    let line = format!("{sum} 0\n");
    assert_eq!(String::from_utf8_lossy(&output.stdout), format!("net x float32 2\n{}", line.repeat(4)));
}

#[test]
fn it_is_loaded_back() {
    let dir = tempfile::tempdir().expect("a temporary folder");
    let model = LoadedModel::load(&exported(dir.path())).expect("it was exported");
    assert_eq!(model.inputs(), program().inputs());
    assert!(model.outputs().iter().eq(program().outputs()));
    let want = [expected().0, input()];
    for threads in [1, 2, 5, 1] {
        assert!(model.set_threads(threads));
        assert_eq!(model.run(&[input()]).expect("x fits"), want);
    }
    model.set_threads(2);
    std::thread::scope(|s| {
        for _ in 0..4 {
            s.spawn(|| (0..50).for_each(|_| assert_eq!(model.run(&[input()]).expect("x fits"), want)));
        }
    });
    assert!(model.run(&[weights()]).expect_err("another shape").to_string().contains("input 0 (`x`) should be"));
}

#[test]
fn its_functions_run_in_process() {
    let dir = tempfile::tempdir().expect("a temporary folder");
    let library = dir.path().join("libkernels.so");
    cc(&["-O2", "-fPIC", "-shared", "-o"], &[&library, &source("kernels.c")]);
    let code = SharedLibrary::load(&library).expect("it was compiled");
    let exe = Executable::link(program(), vec![Arc::new(code)], Arc::new(Pool::new(2))).expect("it has both functions");
    assert_eq!(exe.run(&[input()]).expect("x fits"), [expected().0, input()]);
}

#[test]
fn other_files_are_refused() {
    let dir = tempfile::tempdir().expect("a temporary folder");
    let library = dir.path().join("other.so");
    assert!(LoadedModel::load(&library).is_err());
    cc(&["-O2", "-fPIC", "-shared", "-o"], &[&library, &source("kernels.c")]);
    let message = LoadedModel::load(&library).expect_err("no model").to_string();
    assert!(message.contains("not a library that resat has exported"), "{message}");
}

/// A program's library, and what it is called from.
#[cfg(feature = "llvm")]
mod sized {
    use super::*;
    use crate::{
        common::{Data, Rng, difference, random_tensor},
        dynamic::{AT_ALL_SIZES, network},
        vm::CELLS,
    };
    use resat::{
        driver::{self, Built, Options, emit_c},
        interp,
        ir::{Module, TensorType},
        pass::Settings,
        relay::text::parse_module,
        runtime::LoadedSizedModel,
        target::Target,
    };

    /// The most that the extents of inputs may be: 0 where they are known.
    type Bounds = [(&'static str, &'static [usize])];

    /// Of [`AT_ALL_SIZES`]: some sizes of each lie within.
    const BOUNDS: [&Bounds; 8] = [
        &[("x", &[131, 0])],
        &[("x", &[20, 64])],
        &[("x", &[5, 70, 0])],
        &[("x", &[3, 12, 0]), ("y", &[3, 12, 0])],
        &[("x", &[6, 70, 0])],
        &[("x", &[2, 0, 20, 24])],
        &[("x", &[2, 0, 20, 24])],
        &[("x", &[2, 0, 20, 24])],
    ];

    /// Bounds as text.
    fn within(bounds: &[(&str, &str)]) -> Options {
        let mut options = options(&[]);
        let range = |n: &str| if n == "?" { None } else { Some(n.parse().unwrap_or_else(|e| panic!("{e}"))) };
        options.bounds =
            bounds.iter().map(|(name, all)| ((*name).into(), all.split('x').map(range).collect())).collect();
        options
    }

    fn options(bounds: &Bounds) -> Options {
        let mut options = Options::new(Settings::new(Target::host()));
        options.name = "net".into();
        let known = |&n: &usize| (n > 0).then_some(n.into());
        options.bounds = bounds.iter().map(|(name, most)| ((*name).into(), most.iter().map(known).collect())).collect();
        options
    }

    fn parsed(text: &str) -> Module {
        parse_module("test", &format!("#[version = \"0.0.5\"] {text}")).unwrap_or_else(|e| panic!("{e}"))
    }

    fn built(text: &str, bounds: &Bounds) -> Built {
        driver::build(parsed(text), &[], options(bounds)).unwrap_or_else(|e| panic!("{text}: {e}"))
    }

    fn library(text: &str, bounds: &Bounds, dir: &Path) -> PathBuf {
        library_of(&built(text, bounds), dir)
    }

    fn library_of(built: &Built, dir: &Path) -> PathBuf {
        let path = dir.join("libnet.so");
        built.export("net", &Target::host().codegen(), &path).unwrap_or_else(|e| panic!("{e}"));
        path
    }

    fn loaded(text: &str, bounds: &Bounds, dir: &Path) -> LoadedSizedModel {
        let model = LoadedSizedModel::load(&library(text, bounds, dir)).expect("it can be loaded");
        model.expect("its sizes are found out when it runs")
    }

    /// Why there is no library.
    fn refused(text: &str, bounds: &Bounds) -> String {
        let dir = tempfile::tempdir().expect("a temporary folder");
        let target = Target::host().codegen();
        let done = built(text, bounds).export("net", &target, &dir.path().join("libnet.so"));
        done.expect_err("it is refused").to_string()
    }

    /// Checks a library at sizes of which those beyond bounds are refused, and some are not.
    fn check_sizes(text: &str, bounds: &Bounds, model: &LoadedSizedModel, sizes: &[&[&[i64]]]) {
        let mut within = 0;
        for (seed, shapes) in sizes.iter().enumerate() {
            let inputs = shapes.iter().enumerate().map(|(i, s)| floats(s, (7 * seed + i) as u64));
            let inputs: Vec<Tensor> = inputs.collect();
            // Bounds are of the first inputs, in order.
            let fits = |((_, most), shape): (&(&str, &[usize]), &&[i64])| {
                most.iter().zip(*shape).all(|(&most, &n)| most == 0 || n as usize <= most)
            };
            if bounds.iter().zip(*shapes).all(fits) {
                within += 1;
                assert!(check(text, model, &inputs).is_some(), "{text}");
            } else {
                let message = model.run(&inputs).expect_err("it is too large").to_string();
                assert!(message.contains("the library serves") && message.contains("and fewer"), "{message}");
            }
        }
        assert!(within > 0, "{text}");
    }

    /// Checks that a library gives what the interpreter gives, or refuses what it refuses.
    fn check(text: &str, model: &LoadedSizedModel, inputs: &[Tensor]) -> Option<Vec<Tensor>> {
        let m = parsed(text);
        let values = inputs.iter().cloned().map(Into::into).collect();
        let want = interp::run_flat(&m, "main", values).ok()?;
        let got = model.run(inputs).unwrap_or_else(|e| panic!("{text}: {e}"));
        assert_eq!(want.len(), got.len(), "{text}");
        for (w, g) in want.iter().zip(&got) {
            assert_eq!((w.dtype(), w.shape()), (g.dtype(), g.shape()), "{text}");
            assert_eq!(difference(w, g), None, "{text}");
        }
        Some(got)
    }

    fn floats(shape: &[i64], seed: u64) -> Tensor {
        random_tensor(&TensorType::new(shape, DType::F32), Data::Tame, &mut Rng(seed))
    }

    #[test]
    fn sizes_that_are_found_out_when_it_runs() {
        for ((text, sizes), bounds) in AT_ALL_SIZES.into_iter().zip(BOUNDS) {
            let dir = tempfile::tempdir().expect("a temporary folder");
            let model = loaded(text, bounds, dir.path());
            for threads in [1, 3] {
                assert!(model.set_threads(threads));
                check_sizes(text, bounds, &model, sizes);
            }
        }
    }

    /// Layers of a network, Winograd's algorithm among them, whose numbers follow from extents in no simple way.
    #[test]
    fn layers_of_a_network() {
        let dir = tempfile::tempdir().expect("a temporary folder");
        let (text, bounds): (String, &Bounds) = (network("(?, 16, ?, ?)"), &[("x", &[2, 0, 20, 16])]);
        let model = loaded(&text, bounds, dir.path());
        let sizes: &[&[&[i64]]] =
            &[&[&[1, 16, 20, 16]], &[&[2, 16, 13, 9]], &[&[2, 16, 5, 16]], &[&[1, 16, 17, 7]], &[&[1, 16, 21, 7]]];
        check_sizes(&text, bounds, &model, sizes);
    }

    /// Of images in steps of 16 there are few sizes, however large they are.
    #[test]
    fn sizes_in_steps() {
        let text = network("(?, 16, ?, ?)");
        let bounds = within(&[("x", "2x?x48..128/16x160/16")]);
        let built = driver::build(parsed(&text), &[], bounds).unwrap_or_else(|e| panic!("{e}"));
        let dir = tempfile::tempdir().expect("a temporary folder");
        let model = LoadedSizedModel::load(&library_of(&built, dir.path())).expect("it can be loaded");
        let model = model.expect("its sizes are found out when it runs");
        for (seed, shape) in [[1, 16, 48, 16], [2, 16, 128, 160], [1, 16, 96, 48], [2, 16, 64, 112]].iter().enumerate()
        {
            assert!(check(&text, &model, &[floats(shape, seed as u64)]).is_some());
        }
        for (shape, part) in [
            ([1, 16, 56, 16], "axis 2 of input `x` has 56 elements; the library serves multiples of 16 from 48 to 128"),
            ([1, 16, 32, 16], "has 32 elements; the library serves 48 and more"),
            ([1, 16, 48, 176], "axis 3 of input `x` has 176 elements; the library serves 160 and fewer"),
            ([1, 16, 48, 8], "the library serves 16 and more"),
            ([3, 16, 48, 16], "axis 0 of input `x` has 3 elements; the library serves 2 and fewer"),
        ] {
            let message = model.run(&[floats(&shape, 1)]).expect_err("it is not served").to_string();
            assert!(message.contains(part), "{message}");
        }
    }

    /// Sizes in steps whose numbers have no formula.
    #[test]
    fn sizes_that_types_refuse_in_steps() {
        let dir = tempfile::tempdir().expect("a temporary folder");
        let text = "def @main(%x: Tensor[(?, 5), float32]) {
            let %s = split(%x, indices_or_sections=3, axis=0); nn.softmax(subtract(%s.0, %s.2)) }";
        let built = driver::build(parsed(text), &[], within(&[("x", "6..42/2x?")])).unwrap_or_else(|e| panic!("{e}"));
        let model = LoadedSizedModel::load(&library_of(&built, dir.path())).expect("it can be loaded");
        let model = model.expect("its sizes are found out when it runs");
        for n in 1..46 {
            let x = [floats(&[n, 5], n as u64)];
            match n % 6 == 0 && (6..=42).contains(&n) {
                true => assert!(check(text, &model, &x).is_some()),
                false => assert!(model.run(&x).is_err(), "{n}"),
            }
        }
    }

    /// Sizes within bounds that the program itself refuses.
    #[test]
    fn sizes_that_types_refuse() {
        let dir = tempfile::tempdir().expect("a temporary folder");
        let text = "def @main(%x: Tensor[(?, 5), float32]) {
            let %s = split(%x, indices_or_sections=3, axis=0); nn.softmax(subtract(%s.0, %s.2)) }";
        let model = loaded(text, &[("x", &[12, 0])], dir.path());
        for n in 1..14 {
            let x = [floats(&[n, 5], n as u64)];
            if n % 3 == 0 && n < 13 {
                assert!(check(text, &model, &x).is_some());
            } else {
                let message = model.run(&x).expect_err("it is no multiple of 3").to_string();
                assert!(message.contains("the library"), "{message}");
            }
        }
    }

    #[test]
    fn a_c_program_asks_for_sizes() {
        let dir = tempfile::tempdir().expect("a temporary folder");
        let text = "def @main(%x: Tensor[(?, 7), float32]) {
            let %w = reshape(arange(0f, 35f, 1f, dtype=\"float32\"), newshape=[5, 7]);
            nn.softmax(nn.relu(nn.dense(%x, %w, units=5))) }";
        let library = library(text, &[("x", &[1000, 0])], dir.path());
        std::fs::rename(library.with_extension("h"), dir.path().join("net.h")).expect("the header was written");
        let binary = dir.path().join("main");
        let [include, folder] = ["-I", "-L"].map(|f| format!("{f}{}", dir.path().display()));
        let rpath = format!("-Wl,-rpath,{}", dir.path().display());
        let flags = ["-std=c11", "-Wall", "-Wextra", "-Werror", &include, "-o"];
        let (main, binary) = (source("sized.c").display().to_string(), binary.display().to_string());
        cc(&[&flags[..], &[&binary, &main, &folder, &rpath, "-lnet"]].concat(), &[]);
        let output = Command::new(&binary).output().expect("it was linked");
        let said = String::from_utf8_lossy(&output.stdout).into_owned();
        assert_eq!(output.status.code(), Some(0), "{said}{}", String::from_utf8_lossy(&output.stderr));
        // Each row of a softmax adds up to one.
        let row = |n: usize| format!("{n} x 5: {n}.000 {n}.000 {n}.000\n");
        let rows: String = [1, 3, 64, 131, 1000].into_iter().map(row).collect();
        let wanted = rows
            + "net: axis 1 of input `x` should have 7 elements, but has 8\n\
               net: axis 0 of input `x` has 1152921504606846975 elements; the library serves 1000 and fewer\n";
        assert_eq!(said, wanted);
    }

    #[test]
    fn inputs_that_belong_together() {
        let dir = tempfile::tempdir().expect("a temporary folder");
        let text = "def @main(%x: Tensor[(?, ?), float32], %y: Tensor[(?, ?), float32]) { add(nn.relu(%x), %y) }";
        let model = loaded(text, &[("x", &[20, 9]), ("y", &[20, 9])], dir.path());
        let together = [([3, 4], [3, 4]), ([1, 9], [1, 9]), ([20, 1], [20, 1]), ([7, 5], [1, 5]), ([1, 5], [7, 1])];
        for (a, b) in together {
            assert!(check(text, &model, &[floats(&a, 1), floats(&b, 2)]).is_some());
        }
        let message = model.run(&[floats(&[3, 4], 1), floats(&[2, 4], 2)]).expect_err("3 and 2").to_string();
        assert!(message.contains("axis 0 of input `y` has 2 elements"), "{message}");
    }

    /// Programs of integers with control flow, functions as values, data types and references, and inputs.
    const CONTROL: [(&str, &[i32]); 8] = [
        (
            "def @main(%n: int32, %x: int32) {
                let %loop = fn (%i: int32, %s: int32) {
                    if (less(%i, %n)) { %loop(add(%i, 1), add(%s, %x)) } else { (%i, %s) }
                };
                %loop(0, 0).1 }",
            &[50, 3],
        ),
        (
            "def @ackermann(%m: int32, %n: int32) -> int32 {
                if (equal(%m, 0)) { add(%n, 1) } else {
                    if (equal(%n, 0)) { @ackermann(subtract(%m, 1), 1) } else {
                        @ackermann(subtract(%m, 1), @ackermann(%m, subtract(%n, 1))) } } }
            def @main(%m: int32, %n: int32) { @ackermann(%m, %n) }",
            &[2, 3],
        ),
        (
            "type List[A] { Cons(A, List[A]), Nil, }
            def @fill(%n: int32, %l: List[int32]) -> List[int32] {
                if (equal(%n, 0)) { %l } else { @fill(subtract(%n, 1), Cons(%n, %l)) } }
            def @map[A, B](%f: fn (A) -> B, %xs: List[A]) -> List[B] {
                match (%xs) { Cons(%y, %ys) => { Cons(%f(%y), @map(%f, %ys)) }, Nil => { Nil }, } }
            def @foldl[A, B](%f: fn (A, B) -> A, %acc: A, %xs: List[B]) -> A {
                match (%xs) { Cons(%y, %ys) => { @foldl(%f, %f(%acc, %y), %ys) }, Nil => { %acc }, } }
            def @id[A](%x: A) -> A { %x }
            def @compose[A, B, C](%f: fn (B) -> C, %g: fn (A) -> B) -> fn (A) -> C { fn (%x: A) { %f(%g(%x)) } }
            def @iterate[A](%f: fn (A) -> A, %n: int32) -> fn (A) -> A {
                if (equal(%n, 0)) { @id } else { @compose(%f, @iterate(%f, subtract(%n, 1))) } }
            def @main(%x: int32) {
                let %l = @fill(5, Nil);
                let %add_x = fn (%y: int32) { add(%x, %y) };
                let %fs = @map(fn (%y: int32) { fn (%z: int32) { multiply(%z, add(%y, %x)) } }, %l);
                (@foldl(add, 0, @map(%add_x, %l)), @map(fn (%f: fn (int32) -> int32) { %f(2) }, %fs),
                 @iterate(%add_x, 7)(1), @foldl(fn (%a: List[int32], %b: int32) { Cons(%b, %a) }, Nil, %l)) }",
            &[10],
        ),
        (
            "type T { A, B(int32, (T, int32)), C(T), }
            def @f(%t: T) -> int32 {
                match (%t) {
                    B(%x, (A, %y)) => { add(%x, %y) },
                    C(C(%u)) => { add(100, @f(%u)) },
                    B(%x, (B(_, (C(_), %z)), _)) => { multiply(%x, %z) },
                    C(A) => { 3 },
                    A => { 4 },
                    %other => { match (%other) { B(%x, _) => { subtract(0, %x) }, _ => { 0 }, } },
                } }
            def @main(%x: int32) {
                (@f(A), @f(B(%x, (A, 2))), @f(C(C(C(A)))), @f(B(%x, (B(1, (C(A), 7)), 0))), @f(B(%x, (B(1, (A, 7)), 0))), @f(C(B(1, (A, 1))))) }",
            &[5],
        ),
        (
            "def @main(%a: int32, %n: int32) {
                let %r = ref(0);
                %0 = (let %u = ref_write(%r, add(ref_read(%r), 1)); add(%a, 100));
                let %f = fn (%x: int32) { add(%0, %x) };
                let %g = fn (%x: int32) { subtract(%0, %x) };
                let %loop = fn (%i: int32, %s: int32) -> int32 {
                    if (less(%i, %n)) { %loop(add(%i, 1), add(%s, add(%f(%i), %g(%i)))) } else { %s }
                };
                let %out = %loop(0, 0);
                (%out, ref_read(%r)) }",
            &[1, 3],
        ),
        (CELLS, &[5]),
        (
            "def @pair(%x: Tensor[(2, 2), int32], %n: int32) -> (Tensor[(2, 1), int32], Tensor[(2, 1), int32]) {
                let %s = split(%x, indices_or_sections=2, axis=1);
                if (equal(%n, 0)) { (%s.0, %s.1) } else { @pair(concatenate((%s.1, %s.0), axis=1), subtract(%n, 1)) } }
            def @main(%n: int32) {
                let %x = reshape(arange(0, 4, 1, dtype=\"int32\"), newshape=[2, 2]);
                let %p = @pair(%x, %n);
                (concatenate(%p), %p) }",
            &[1],
        ),
        (
            "type List[A] { Cons(A, List[A]), Nil, }
            def @fill(%n: int32, %l: List[int32]) -> List[int32] {
                if (equal(%n, 0)) { %l } else { @fill(subtract(%n, 1), Cons(%n, %l)) } }
            def @sum(%l: List[int32]) -> int32 { match (%l) { Cons(%x, %rest) => { add(%x, @sum(%rest)) }, Nil => { 0 }, } }
            def @main(%n: int32) { @sum(@fill(%n, Nil)) }",
            &[3000],
        ),
    ];

    #[test]
    fn control_flow_functions_and_data_types() {
        for (text, inputs) in CONTROL {
            let dir = tempfile::tempdir().expect("a temporary folder");
            let model = loaded(text, &[], dir.path());
            let inputs: Vec<Tensor> = inputs.iter().map(|&a| Tensor::scalar(a)).collect();
            // What one run leaves does not meet the next.
            for _ in 0..2 {
                assert!(check(text, &model, &inputs).is_some(), "{text}");
            }
        }
    }

    /// The same program as C, compiled, loaded.
    fn emitted(text: &str, bounds: &Bounds, dir: &Path) -> LoadedSizedModel {
        let files = emit_c(parsed(text), &[], options(bounds), &dir.join("net.c"));
        let files = files.unwrap_or_else(|e| panic!("{text}: {e}"));
        // What libraries have so that they can be loaded, and C has not.
        let (entry, library) = (dir.join("entry.c"), dir.join("emitted.so"));
        let model = "#include \"net.h\"\nconst resat_sized_model *resat_sized_model_v1(void);\n\
                     const resat_sized_model *resat_sized_model_v1(void) { return net_model(); }\n";
        std::fs::write(&entry, model).expect("it can be written");
        cc(
            &["-std=c99", "-pedantic", "-Wall", "-Werror", "-O1", "-fPIC", "-shared", "-o"],
            &[&library, &files.source, &entry, Path::new("-lm")],
        );
        LoadedSizedModel::load(&library).expect("it can be loaded").expect("its sizes are found out")
    }

    #[test]
    fn the_same_as_c() {
        for ((text, sizes), bounds) in AT_ALL_SIZES.into_iter().zip(BOUNDS) {
            let dir = tempfile::tempdir().expect("a temporary folder");
            check_sizes(text, bounds, &emitted(text, bounds, dir.path()), sizes);
        }
        for (text, inputs) in CONTROL {
            let dir = tempfile::tempdir().expect("a temporary folder");
            let inputs: Vec<Tensor> = inputs.iter().map(|&a| Tensor::scalar(a)).collect();
            assert!(check(text, &emitted(text, &[], dir.path()), &inputs).is_some(), "{text}");
        }
    }

    /// Programs with control flow whose tensors are of unknown extents; bounds; inputs, of floats by their extents and of integers.
    const GROWING: [(&str, &Bounds, &[&[Given]]); 5] = [
        // From one turn to the next, twice as long.
        (
            "def @grow(%x: Tensor[(?), int32], %n: int32) -> Tensor[(?), int32] {
                if (less(%n, 1)) { %x } else { @grow(concatenate((%x, add(%x, 1))), subtract(%n, 1)) } }
            def @main(%n: int32) { @grow(reshape(%n, newshape=[1]), %n) }",
            &[("?", &[16])],
            &[&[Given::Number(0)], &[Given::Number(1)], &[Given::Number(5)]],
        ),
        // Row after row, from nothing; what has as many rows as columns at the end.
        (
            "def @main(%x: Tensor[(3, 4), float32], %n: int32) {
                let %loop = fn (%i: int32, %s: Tensor[(?, 4), float32]) -> Tensor[(?, 4), float32] {
                    if (less(%i, %n)) { %loop(add(%i, 1), concatenate((nn.relu(%s), multiply(%x, cast(%i, dtype=\"float32\"))))) } else { %s }
                };
                let %all = %loop(0, strided_slice(%x, begin=[0, 0], end=[0, 4], strides=[1, 1]));
                (nn.softmax(nn.dense(%all, %all)), sum(%all, axis=[0])) }",
            &[("?", &[21])],
            &[&[Given::Floats(&[3, 4]), Given::Number(1)], &[Given::Floats(&[3, 4]), Given::Number(7)]],
        ),
        // A list of tensors of any lengths.
        (
            "type List[A] { Cons(A, List[A]), Nil, }
            def @join(%l: List[Tensor[(?, 2), float32]], %s: Tensor[(?, 2), float32]) -> Tensor[(?, 2), float32] {
                match (%l) { Cons(%x, %rest) => { @join(%rest, concatenate((%s, %x))) }, Nil => { %s }, } }
            def @main(%x: Tensor[(?, 2), float32], %y: Tensor[(?, 2), float32]) {
                @join(Cons(%x, Cons(tanh(%y), Cons(%x, Nil))), %y) }",
            &[("x", &[4, 0]), ("y", &[5, 0]), ("?", &[18])],
            &[
                &[Given::Floats(&[1, 2]), Given::Floats(&[5, 2])],
                &[Given::Floats(&[4, 2]), Given::Floats(&[5, 2])],
                &[Given::Floats(&[3, 2]), Given::Floats(&[1, 2])],
            ],
        ),
        // Inputs of any extents, which stay as they are: their bounds are enough.
        (
            "def @power(%x: Tensor[(?, ?), float32], %y: Tensor[(?, ?), float32], %n: int32) -> Tensor[(?, ?), float32] {
                if (less(%n, 1)) { %y } else { @power(%x, multiply(%x, nn.relu(%y)), subtract(%n, 1)) } }
            def @main(%x: Tensor[(?, ?), float32], %n: int32) { (@power(%x, %x, %n), mean(%x, axis=[1])) }",
            &[("x", &[6, 9])],
            &[
                &[Given::Floats(&[3, 7]), Given::Number(3)],
                &[Given::Floats(&[6, 9]), Given::Number(1)],
                &[Given::Floats(&[1, 1]), Given::Number(2)],
                &[Given::Floats(&[1, 9]), Given::Number(0)],
            ],
        ),
        // Closures over them, and cells.
        (
            "def @main(%x: Tensor[(?, 3), float32], %n: int32) {
                let %r = ref(%x);
                let %f = fn (%y: Tensor[(?, 3), float32]) { concatenate((%x, %y)) };
                let %loop = fn (%i: int32) -> int32 {
                    if (less(%i, %n)) { let %u = ref_write(%r, %f(ref_read(%r))); %loop(add(%i, 1)) } else { %i } };
                let %turns = %loop(0);
                (ref_read(%r), %turns) }",
            &[("?", &[13])],
            &[&[Given::Floats(&[2, 3]), Given::Number(5)], &[Given::Floats(&[1, 3]), Given::Number(0)]],
        ),
    ];

    /// An input.
    #[derive(Clone, Copy)]
    enum Given {
        Floats(&'static [i64]),
        Number(i32),
    }

    fn given(all: &[Given]) -> Vec<Tensor> {
        let one = |(i, g): (usize, &Given)| match *g {
            Given::Floats(shape) => floats(shape, i as u64),
            Given::Number(n) => Tensor::scalar(n),
        };
        all.iter().enumerate().map(one).collect()
    }

    #[test]
    fn tensors_that_grow_while_a_program_runs() {
        for (text, bounds, all) in GROWING {
            let dir = tempfile::tempdir().expect("a temporary folder");
            let built = built(text, bounds);
            let model = LoadedSizedModel::load(&library_of(&built, dir.path())).expect("it can be loaded");
            let model = model.expect("its sizes are found out when it runs");
            for inputs in all.iter().map(|g| given(g)) {
                let got = check(text, &model, &inputs).expect("the interpreter takes it");
                let here = built.executable.run(&inputs).unwrap_or_else(|e| panic!("{text}: {e}"));
                assert!(here.iter().zip(&got).all(|(w, g)| difference(w, g).is_none()), "{text}");
            }
        }
    }

    #[test]
    fn tensors_that_grow_as_c() {
        for (text, bounds, all) in GROWING {
            let dir = tempfile::tempdir().expect("a temporary folder");
            let model = emitted(text, bounds, dir.path());
            for g in all {
                assert!(check(text, &model, &given(g)).is_some(), "{text}");
            }
        }
    }

    /// Values that decide extents by which elements are taken as they lie.
    #[test]
    fn extents_that_are_values() {
        let text = "def @main(%x: Tensor[(?, ?), float32], %s: Tensor[(3), int64]) { nn.relu(dyn.reshape(%x, %s)) }";
        let bounds: &Bounds = &[("?", &[12])];
        let dir = tempfile::tempdir().expect("a temporary folder");
        let models = [loaded(text, bounds, dir.path()), emitted(text, bounds, dir.path())];
        let run = |x: &[i64], s: &[i64]| [floats(x, 1), Tensor::from_slice(&[3], s)];
        for model in &models {
            for (x, s) in [([4, 6], [2, 12, 1]), ([4, 6], [0, -1, 3]), ([4, 3], [-3, 1, 1]), ([1, 5], [5, -1, 1])] {
                assert!(check(text, model, &run(&x, &s)).is_some(), "{s:?}");
            }
            for s in [[2, 3, 5], [-1, -1, 2], [0, 0, 0], [7, -1, 1], [-5, 1, 1], [i64::MAX, i64::MAX, 2]] {
                let message = model.run(&run(&[4, 6], &s)).expect_err("another number of elements").to_string();
                assert!(message.contains("24 elements do not take the extents that are asked for"), "{message}");
            }
            let message = model.run(&run(&[4, 6], &[1, 1, 24])).expect_err("beyond the bound").to_string();
            assert!(message.contains("the library serves 12 and fewer"), "{message}");
        }
    }

    /// What is beyond bounds is refused, whether it is an input or what became of it, and the next call is as if it had not been.
    #[test]
    fn tensors_that_grow_too_far_are_refused() {
        let dir = tempfile::tempdir().expect("a temporary folder");
        let (text, bounds, all) = GROWING[2];
        let model = loaded(text, bounds, dir.path());
        for (x, y, part) in [
            (5, 1, "net: axis 0 of input `x` has 5 elements; the library serves 4 and fewer"),
            (1, 6, "net: axis 0 of input `y` has 6 elements; the library serves 5 and fewer"),
        ] {
            let message = model.run(&[floats(&[x, 2], 1), floats(&[y, 2], 2)]).expect_err("too large").to_string();
            assert!(message.contains(part), "{message}");
        }
        assert!(check(text, &model, &given(all[0])).is_some());
        let dir = tempfile::tempdir().expect("a temporary folder");
        let (text, bounds, all) = GROWING[0];
        let model = loaded(text, bounds, dir.path());
        let message = model.run(&[Tensor::scalar(6i32)]).expect_err("32 elements are too many").to_string();
        assert!(message.contains("has 32 elements; the library serves 16 and fewer"), "{message}");
        assert!(check(text, &model, &given(all[2])).is_some());
    }

    #[test]
    fn failures_are_reported() {
        let dir = tempfile::tempdir().expect("a temporary folder");
        let text = "type T { A, B(int32), }
            def @f(%t: T) -> int32 { match? (%t) { B(%x) => { %x }, } }
            def @main(%x: int32) { if (less(%x, 3)) { @f(B(%x)) } else { @f(A) } }";
        let model = loaded(text, &[], dir.path());
        assert!(check(text, &model, &[Tensor::scalar(2i32)]).is_some());
        let message = model.run(&[Tensor::scalar(3i32)]).expect_err("no clause").to_string();
        assert!(message.contains("no clause of `match` meets"), "{message}");
        assert!(check(text, &model, &[Tensor::scalar(2i32)]).is_some());
    }

    #[test]
    fn what_needs_a_compiler_is_refused_with_its_place() {
        let text = "def @main(%x: Tensor[(?, ?), float32], %s: Tensor[(3), int64]) {
            nn.relu(dyn.tile(%x, %s)) }";
        let message = refused(text, &[]);
        assert!(message.contains("dyn_tile") && message.contains("values that are computed decide"), "{message}");
        assert!(message.contains("test:2"), "{message}");
        // A tensor that grows from one turn to the next.
        let text = "def @grow(%x: Tensor[(?), int32], %n: int32) -> Tensor[(?), int32] {
                if (less(%n, 1)) { %x } else { @grow(concatenate((%x, add(%x, 1))), subtract(%n, 1)) } }
            def @main(%n: int32) { @grow(reshape(%n, newshape=[1]), %n) }";
        let message = refused(text, &[]);
        assert!(message.contains("its extents are found while the program runs"), "{message}");
        assert!(message.contains("--max '?=N'") && message.contains("test:"), "{message}");
    }

    #[test]
    fn sizes_that_cannot_all_be_checked_are_refused() {
        let text = "def @main(%x: Tensor[(?, ?, 8), float32]) { nn.softmax(%x) }";
        let message = refused(text, &[]);
        assert!(message.contains("no bound: axis 0 of `x`, axis 1 of `x`") && message.contains("--max"), "{message}");
        let message = refused(text, &[("x", &[64, 65, 0])]);
        assert!(message.contains("64 x 65 sizes") && message.contains("4096 is the limit"), "{message}");
        assert!(message.contains("--max height=512/32"), "{message}");
        let dir = tempfile::tempdir().expect("a temporary folder");
        let emitted = emit_c(parsed(text), &[], options(&[]), &dir.path().join("net.c"));
        assert!(emitted.expect_err("it is refused").to_string().contains("no bound: axis 0 of `x`"));
    }
}
