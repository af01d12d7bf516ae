//! What is kept on disk is found again where nothing has changed, and only there.

use std::{
    fs,
    path::Path,
    process::{Command, Stdio},
    sync::Arc,
};

use resat::{
    cost,
    driver::{Built, Cache, Options, build, settings_key},
    extract,
    ir::{Module, Name},
    pass::{Pass, Settings, default_pipeline},
    relay::{npz, params, text},
    saturate::Grade,
    store::KeyMaker,
    target::Target,
    tensor::{DType, Tensor},
};
use tempfile::TempDir;

use super::{
    commands::sum_of,
    protobuf::{bytes, number},
};

const PROGRAM: &str = "#[version = \"0.0.5\"]
def @main(%x: Tensor[(8, 16), float32], %w: Tensor[(32, 16), float32]) {
  %0 = nn.dense(%x, %w, units=None);
  %1 = nn.relu(%0);
  (nn.softmax(%1), sum(%1, axis=[1]))
}
";

fn module() -> Module {
    text::parse_module("program", PROGRAM).expect("it parses")
}

fn weights(by: f64) -> Vec<(Name, Tensor)> {
    vec![("w".into(), Tensor::from_f64_fn(DType::F32, &[32, 16], |i| by * ((i % 7) as f64 - 3.0)))]
}

fn input() -> Tensor {
    Tensor::from_f64_fn(DType::F32, &[8, 16], |i| (i % 5) as f64 - 2.0)
}

fn built(cache: &Arc<Cache>, module: Module, params: &[(Name, Tensor)], change: impl FnOnce(&mut Options)) -> Built {
    let mut options = Options::new(Settings::new(Target::host()));
    options.cache = Some(cache.clone());
    options.threads = 1;
    change(&mut options);
    build(module, params, options).expect("it compiles")
}

fn same(_: &mut Options) {}

#[test]
fn unchanged_programs_are_there_at_once() {
    let folder = TempDir::new().expect("a folder can be made");
    let cache = Arc::new(Cache::new(folder.path()));
    let first = built(&cache, module(), &weights(1.0), same);
    let again = built(&cache, module(), &weights(1.0), same);
    assert_eq!((first.is_cached(), again.is_cached()), (false, true));
    let (want, got) = (first.executable.run(&[input()]), again.executable.run(&[input()]));
    assert_eq!(want.expect("it runs"), got.expect("it runs"));
    assert_eq!((first.calls, &first.parameters), (again.calls, &again.parameters));
    let plain = |b: &Built| format!("{:?}", b.executable.as_plain().expect("a plain program").program());
    assert_eq!(plain(&first), plain(&again));
    assert_eq!(cache.complaints(), [""; 0]);
}

#[test]
fn whatever_is_changed_is_built() {
    let folder = TempDir::new().expect("a folder can be made");
    let cache = Arc::new(Cache::new(folder.path()));
    let first = built(&cache, module(), &weights(1.0), same);
    let other = built(&cache, module(), &weights(2.0), same);
    assert!(!other.is_cached());
    assert_ne!(first.executable.run(&[input()]).expect("runs")[1], other.executable.run(&[input()]).expect("runs")[1]);
    let renamed = text::parse_module("program", &PROGRAM.replace("nn.relu", "tanh")).expect("it parses");
    assert!(!built(&cache, renamed, &weights(1.0), same).is_cached());
    assert!(!built(&cache, module(), &weights(1.0), |o| o.settings.limits.nodes = 10).is_cached());
    assert!(
        !built(&cache, module(), &weights(1.0), |o| o.settings.target =
            Target::parse("llvm -mcpu=x86-64").expect("one"))
        .is_cached()
    );
    assert!(!built(&cache, module(), &weights(1.0), |o| o.name = "another".into()).is_cached());
    assert!(built(&cache, module(), &weights(1.0), same).is_cached());
}

#[test]
fn passes_of_ones_own_have_no_content() {
    let folder = TempDir::new().expect("a folder can be made");
    let cache = Arc::new(Cache::new(folder.path()));
    let own = |o: &mut Options| {
        let pipeline: Box<dyn Pass> = Box::new(default_pipeline(&o.settings).expect("the default"));
        o.passes = Some(pipeline);
    };
    assert!(!built(&cache, module(), &weights(1.0), own).is_cached());
    assert!(!built(&cache, module(), &weights(1.0), own).is_cached());
    // A key says that they are the same.
    let keyed = |o: &mut Options| {
        own(o);
        o.key = Some(resat::store::KeyMaker::new().part("mine, version 1").key());
    };
    assert!(!built(&cache, module(), &weights(1.0), keyed).is_cached());
    assert!(built(&cache, module(), &weights(1.0), keyed).is_cached());
}

/// Of programs that are no plain sequence of calls on known extents, what the passes left is kept.
#[test]
fn passes_are_not_run_again_where_extents_are_unknown() {
    let folder = TempDir::new().expect("a folder can be made");
    let cache = Arc::new(Cache::new(folder.path()));
    let free = PROGRAM.replace("(8, 16)", "(?, 16)");
    let branches = PROGRAM.replace("nn.relu(%0)", "if (greater(sum(%x), 0f)) { nn.relu(%0) } else { tanh(%0) }");
    let state = "#[version = \"0.0.5\"]
def @main(%x: Tensor[(1, 16), float32], %w: Tensor[(32, 16), float32], %cache: Tensor[(?, 32), float32]) {
  %0 = concatenate((%cache, nn.dense(%x, %w, units=None)), axis=0);
  (sum(%0, axis=[1]), %0)
}";
    let rows = |n: usize| Tensor::from_f64_fn(DType::F32, &[n, 16], |i| (i % 5) as f64 - 2.0);
    let before = Tensor::from_f64_fn(DType::F32, &[3, 32], |i| i as f64);
    let inputs = [vec![rows(3)], vec![rows(8)], vec![rows(1), before]];
    for (text, takes) in [(&free[..], &inputs[0..2]), (&branches, &inputs[1..2]), (state, &inputs[2..3])] {
        let runs = |o: &mut Options| {
            // Hooks of whoever looks at passes are not called.
            o.before_pass = Some(Box::new(|pass, _| panic!("{} was run", pass.name())));
            if text == state {
                o.state = vec![("cache".into(), "1".into())];
            }
        };
        let first = |o: &mut Options| {
            runs(o);
            o.before_pass = None;
        };
        let module = || text::parse_module("program", text).expect("it parses");
        let here = built(&cache, module(), &weights(1.0), first);
        let found = built(&cache, module(), &weights(1.0), runs);
        assert_eq!((here.is_cached(), found.is_cached()), (false, true), "{text}");
        assert_eq!((here.calls, &here.parameters), (found.calls, &found.parameters));
        for given in takes {
            let run = |b: &Built| b.executable.run(given).expect("it runs");
            assert_eq!(run(&here), run(&found), "{text}");
        }
        // What is said of a program decides what passes make of it.
        let other = [
            built(&cache, module(), &weights(2.0), first),
            built(&cache, module(), &weights(1.0), |o| {
                first(o);
                o.settings.limits.nodes = 10;
            }),
        ];
        assert!(other.iter().all(|b| !b.is_cached()), "{text}");
        assert_ne!(here.executable.run(&takes[0]).expect("runs"), other[0].executable.run(&takes[0]).expect("runs"));
    }
    let said = |hint: usize, most: usize| {
        let module = text::parse_module("program", &free).expect("it parses");
        built(&cache, module, &weights(1.0), |o| {
            o.hints = vec![("x".into(), vec![Some(hint), None])];
            o.bounds = vec![("x".into(), vec![Some(most.into()), None])];
        })
    };
    let all = [(4, 8), (4, 8), (5, 8), (4, 9), (5, 8)].map(|(hint, most)| said(hint, most));
    assert_eq!(all.each_ref().map(Built::is_cached), [false, true, false, false, true]);
    let refused = |b: &Built| b.executable.run(&[rows(9)]).is_err();
    assert_eq!(all.each_ref().map(refused), [true, true, true, false, true]);
    // What is damaged is made again.
    for entry in fs::read_dir(folder.path().join("models")).expect("it is there").flatten() {
        let mut bytes = fs::read(entry.path()).expect("it can be read");
        *bytes.last_mut().expect("it has some") ^= 1;
        fs::write(entry.path(), bytes).expect("it can be written");
    }
    let cache = Arc::new(Cache::new(folder.path()));
    let again = || built(&cache, text::parse_module("program", &free).expect("it parses"), &weights(1.0), same);
    assert_eq!([again().is_cached(), again().is_cached()], [false, true]);
}

#[test]
fn several_programs_share_what_is_kept() {
    let folder = TempDir::new().expect("a folder can be made");
    let cache = Arc::new(Cache::new(folder.path()));
    let want = built(&cache, module(), &weights(1.0), same).executable.run(&[input()]).expect("it runs");
    std::thread::scope(|s| {
        for _ in 0..4 {
            s.spawn(|| {
                let found = built(&cache, module(), &weights(1.0), same);
                // What is gone from the folder stays with those who have it, and is made again.
                let _ = fs::remove_dir_all(folder.path().join("models"));
                assert_eq!(found.executable.run(&[input()]).expect("it runs"), want);
                built(&cache, module(), &weights(1.0), same);
            });
        }
    });
}

#[test]
fn what_was_built_here_reads_the_weights_that_are_kept() {
    // Enough of them that it pays; no others than are given, and packed.
    let text = PROGRAM.replace("(32, 16)", "(2097152, 4)").replace("(8, 16)", "(8, 4)");
    let module = || text::parse_module("program", &text).expect("it parses");
    let given = Tensor::from_f64_fn(DType::F32, &[1 << 21, 4], |i| (i % 7) as f64 - 3.0);
    let params: Vec<(Name, Tensor)> = vec![("w".into(), given)];
    let input = Tensor::from_f64_fn(DType::F32, &[8, 4], |i| (i % 5) as f64 - 2.0);
    let folder = TempDir::new().expect("a folder can be made");
    let cache = Arc::new(Cache::new(folder.path()));
    let constants = |b: &Built| b.executable.as_plain().expect("it is plain").program().constants().to_vec();
    let here = built(&cache, module(), &params, same);
    let found = built(&cache, module(), &params, same);
    assert!(!here.is_cached() && found.is_cached());
    assert!(constants(&here) == constants(&found));
    #[cfg(target_os = "linux")]
    {
        // In which mapping of the process they lie: lines of `begin-end rights offset device inode path`.
        let maps = fs::read_to_string("/proc/self/maps").expect("Linux tells what is mapped");
        let address = |hex: &str| usize::from_str_radix(hex, 16).expect("an address");
        let mapped_from = |t: &Tensor| {
            let at = t.bytes().as_ptr().addr();
            let range =
                |l: &str| l.split_once(' ').and_then(|l| l.0.split_once('-')).map(|(b, e)| address(b)..address(e));
            maps.lines().find(|l| range(l).is_some_and(|r| r.contains(&at))).expect("it is mapped")
        };
        let is_given = |t: &Tensor| params.iter().any(|(_, p)| p.bytes().as_ptr() == t.bytes().as_ptr());
        let ours: Vec<Tensor> = constants(&here).into_iter().filter(|t| !is_given(t) && !t.is_empty()).collect();
        assert!(!ours.is_empty(), "the weights are packed, and so others than were given");
        let kept = folder.path().join("models");
        for t in ours {
            assert!(mapped_from(&t).contains(kept.to_str().expect("of UTF-8")), "{}", mapped_from(&t));
        }
    }
    let results = |b: &Built| b.executable.run(std::slice::from_ref(&input)).expect("it runs");
    assert!(results(&here) == results(&found));
}

struct Ran {
    stdout: String,
    stderr: String,
}

fn resat(folder: &Path, line: &str) -> Ran {
    let mut command = Command::new(env!("CARGO_BIN_EXE_resat"));
    command.args(line.split(' ')).current_dir(folder).stdin(Stdio::null());
    let output = command.env("XDG_CACHE_HOME", folder.join("user")).output().expect("the program starts");
    let text = |bytes: Vec<u8>| String::from_utf8(bytes).expect("the program writes UTF-8");
    let ran = Ran { stdout: text(output.stdout), stderr: text(output.stderr) };
    assert!(output.status.success(), "resat {line}\n{}", ran.stderr);
    ran
}

fn write_weights(folder: &Path, by: f64) {
    let weights = weights(by);
    let bytes = params::write(weights.iter().map(|(n, t)| (n.as_str(), t)));
    fs::write(folder.join("p.params"), bytes).expect("it can be written");
}

fn files() -> TempDir {
    let folder = TempDir::new().expect("a folder can be made");
    fs::write(folder.path().join("p.relay"), PROGRAM).expect("it can be written");
    write_weights(folder.path(), 1.0);
    let x = input();
    fs::write(folder.path().join("in.npz"), npz::write([("x", &x)]).expect("an archive")).expect("it can be written");
    folder
}

fn output(folder: &Path) -> Vec<(Name, Tensor)> {
    npz::read("out", &fs::read(folder.join("out.npz")).expect("it was written")).expect("an archive")
}

const RUN: &str = "run p.relay --params p.params --inputs in.npz --outputs out.npz --time";

#[test]
fn the_command_line_finds_what_it_built() {
    let folder = files();
    let at = folder.path();
    let found = |line: &str| resat(at, line).stderr.contains("found in the cache");
    assert!(!found(RUN));
    let want = output(at);
    assert!(found(RUN));
    assert_eq!(output(at), want);
    assert!(at.join("user/resat/models").is_dir() && at.join("user/resat/objects").is_dir());
    // Random inputs are the same, be the program built or found.
    let random = RUN.replace("--inputs in.npz ", "");
    assert!(found(&random));
    let drawn = output(at);
    assert!(!found(&format!("{random} --no-cache")));
    assert_eq!(output(at), drawn);
    // Other options, other weights, another place.
    assert!(!found(&format!("{RUN} -O 1")) && found(&format!("{RUN} -O 1")));
    write_weights(at, 3.0);
    assert!(!found(RUN));
    assert_ne!(output(at), want);
    assert!(!found(&format!("{RUN} --cache-dir here")) && found(&format!("{RUN} --cache-dir here")));
    let json = resat(at, "bench p.relay --params p.params --inputs in.npz --repeat 1 --json").stdout;
    let json: serde_json::Value = serde_json::from_str(&json).expect("it is JSON");
    assert_eq!(json["cached"], true);
    assert!(json["arena_bytes"].as_u64() >= json["arena_least_bytes"].as_u64() && json["peak_memory_bytes"].is_u64());
    // Libraries are made of what was kept; whoever asks for a report gets one.
    resat(at, "build p.relay --params p.params -o one.so");
    resat(at, "build p.relay --params p.params -o one.so");
    assert!(resat(at, "build p.relay --params p.params -o one.so --report").stderr.contains("expressions"));
    resat(at, "run one.so --inputs in.npz --outputs out2.npz");
    assert_eq!(fs::read(at.join("out.npz")).expect("written"), fs::read(at.join("out2.npz")).expect("written"));
}

#[test]
fn data_beside_an_onnx_model_is_a_part_of_it() {
    let folder = TempDir::new().expect("a folder can be made");
    let at = folder.path();
    let entry = |key: &str, value: &str| bytes(13, [bytes(1, key), bytes(2, value)].concat());
    let weight = [entry("location", "w.bin"), entry("length", "8"), number(14, 1)].concat();
    fs::write(at.join("sum.onnx"), sum_of("w", &weight)).expect("it can be written");
    let x = Tensor::from_f64_fn(DType::F32, &[2], |_| 10.0);
    fs::write(at.join("in.npz"), npz::write([("x", &x)]).expect("an archive")).expect("it can be written");
    let run = |first: f32| {
        fs::write(at.join("w.bin"), [first, 2.0].map(f32::to_le_bytes).concat()).expect("it can be written");
        let ran = resat(at, "run sum.onnx --backend llvm --inputs in.npz --outputs out.npz --time");
        (output(at)[0].1.get_f64(0), ran.stderr.contains("found in the cache"))
    };
    assert_eq!(run(1.0), (11.0, false));
    assert_eq!(run(1.0), (11.0, true));
    assert_eq!(run(3.0), (13.0, false));
    assert_eq!(run(1.0), (11.0, true));
}

#[test]
fn edits_and_damage_of_large_files_are_seen() {
    let folder = TempDir::new().expect("a folder can be made");
    let at = folder.path();
    let program = PROGRAM.replace("(32, 16)", "(65536, 16)").replace("nn.softmax(%1)", "%1");
    fs::write(at.join("p.relay"), program).expect("it can be written");
    let x = input();
    fs::write(at.join("in.npz"), npz::write([("x", &x)]).expect("an archive")).expect("it can be written");
    let weights = Tensor::from_f64_fn(DType::F32, &[65536, 16], |i| (i % 7) as f64);
    let file = at.join("p.params");
    let mut content = params::write([("w", &weights)]);
    fs::write(&file, &content).expect("it can be written");
    let found = || resat(at, RUN).stderr.contains("found in the cache");
    assert_eq!((found(), found(), found()), (false, true, true));
    let want = output(at);
    // The time of the last write stays what it was.
    let written = fs::metadata(&file).and_then(|m| m.modified()).expect("it has a time");
    *content.last_mut().expect("it is not empty") ^= 1;
    fs::write(&file, &content).expect("it can be written");
    fs::File::options().append(true).open(&file).and_then(|f| f.set_modified(written)).expect("it has a time");
    assert_eq!((found(), found()), (false, true));
    assert_ne!(output(at), want);
    damage(&at.join("user/resat/models"));
    let ran = resat(at, RUN);
    assert!(ran.stderr.contains("damaged") && !ran.stderr.contains("found in the cache"), "{}", ran.stderr);
    // Where nothing can be remembered, all is read, and nobody need know.
    let _ = fs::remove_dir_all(at.join("user/resat/digests"));
    fs::write(at.join("user/resat/digests"), "a file").expect("it can be written");
    let ran = resat(at, RUN);
    assert!(ran.stderr.contains("found in the cache") && !ran.stderr.contains("note:"), "{}", ran.stderr);
}

/// Changes the last byte of each file.
fn damage(folder: &Path) {
    for file in fs::read_dir(folder).expect("a folder") {
        let path = file.expect("an entry").path();
        let mut bytes = fs::read(&path).expect("it can be read");
        *bytes.last_mut().expect("it is not empty") ^= 1;
        fs::write(&path, bytes).expect("it can be written");
    }
}

#[test]
fn damage_is_told_and_mended() {
    let folder = files();
    let at = folder.path();
    resat(at, RUN);
    let want = output(at);
    ["models", "objects"].iter().for_each(|kind| damage(&at.join("user/resat").join(kind)));
    let ran = resat(at, RUN);
    assert!(ran.stderr.contains("damaged") && !ran.stderr.contains("found in the cache"), "{}", ran.stderr);
    assert_eq!(output(at), want);
    assert!(resat(at, RUN).stderr.contains("found in the cache"));
}

#[test]
fn processes_share_a_cache() {
    let folder = files();
    let at = folder.path();
    let start = |i: usize| {
        let line = RUN.replace("out.npz", &format!("out{i}.npz"));
        let mut command = Command::new(env!("CARGO_BIN_EXE_resat"));
        command.args(line.split(' ')).current_dir(at).env("XDG_CACHE_HOME", at.join("user")).stderr(Stdio::null());
        command.spawn().expect("the program starts")
    };
    let running: Vec<_> = (0..4).map(start).collect();
    for mut process in running {
        assert!(process.wait().expect("it ends").success());
    }
    let outputs: Vec<Vec<u8>> =
        (0..4).map(|i| fs::read(at.join(format!("out{i}.npz"))).expect("it was written")).collect();
    assert!(outputs.windows(2).all(|w| w[0] == w[1]));
}

/// A model whose prices no name tells.
struct Own(f64);

impl cost::CostModel for Own {
    fn name(&self) -> &str {
        "own"
    }

    fn cost(&self, _: &cost::NodeView) -> f64 {
        self.0
    }
}

#[test]
fn what_decides_is_in_the_key_by_its_content() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let file = folder.path().join("prices.json");
    let table = |price: f64| {
        fs::write(&file, format!("{{\"default\": {{\"cost\": {price:.1}}}}}")).expect("it can be written");
        cost::parse(&format!("table:{}", file.display()), None).expect("it reads")
    };
    let key = |change: &mut dyn FnMut(&mut Settings)| {
        let mut settings = Settings::new(Target::host());
        change(&mut settings);
        settings_key(KeyMaker::new(), &settings).map(|k| format!("{:?}", k.key()))
    };
    let mut seen = vec![key(&mut |_| {}).expect("resat's own parts have content")];
    assert_eq!(key(&mut |_| {}).as_ref(), seen.first());
    type Change<'a> = Box<dyn FnMut(&mut Settings) + 'a>;
    let changes: Vec<Change> = vec![
        Box::new(|s| s.target = Target::parse("llvm -mcpu=haswell").expect("a target")),
        Box::new(|s| s.target.cores += 1),
        Box::new(|s| s.limits.nodes += 1),
        Box::new(|s| s.limits.time *= 2),
        Box::new(|s| s.limits.error = 0.5),
        Box::new(|s| s.cost = table(1.0)),
        Box::new(|s| s.cost = table(2.0)),
        Box::new(|s| s.cost = cost::parse("0.5*flops + 2*nodes", None).expect("it reads")),
        Box::new(|s| s.cost = cost::parse("0.5*flops + 3*nodes", None).expect("it reads")),
        Box::new(|s| s.extractor = Arc::new(extract::TreeGreedy)),
        Box::new(|s| s.extractor = Arc::new(extract::Search::default())),
        Box::new(|s| s.extractor = Arc::new(extract::Search { most_moves: 1, ..Default::default() })),
        Box::new(|s| s.grade = Grade::Exact),
        Box::new(|s| s.without.push("algebra/some-rule".into())),
        Box::new(|s| s.rulesets_off.push("algebra".into())),
        Box::new(|s| s.rulesets_on.push("fusion".into())),
    ];
    for (i, mut change) in changes.into_iter().enumerate() {
        let found = key(&mut change).unwrap_or_else(|| panic!("change {i} has content"));
        assert!(!seen.contains(&found), "change {i} makes no new key");
        seen.push(found);
    }
    // What can't be known is not kept.
    assert_eq!(key(&mut |s| s.cost = Arc::new(Own(1.0))), None);
    assert_eq!(
        key(&mut |s| {
            s.rulesets = resat::rules::load("f", "(ruleset f :numerics exact)\n\n;; max(max(x, 0), 0) == max(x, 0).\n(rule twice (nn.relu (nn.relu ?x)) => (nn.relu ?x))").expect("it reads")
        }),
        None
    );
}
