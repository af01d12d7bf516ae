//! Routines among tensor expressions: scheduled kernels, run plainly, against the plain evaluation of the definitions.

use crate::common::{Rng, difference};
use resat::{
    ir::{AttrValue, Name},
    loops::{Builder, Combine, LoopKind, Operand, Scalar, Stages, Stmt, check, eval_stages, run_kernel},
    lower::kernel,
    machine::Core,
    ops,
    tensor::{DType, Tensor, Value},
};

/// The results of a group by its kernel.
fn run(group: &Stages, args: &[Tensor]) -> Vec<Tensor> {
    let kernel =
        kernel("k", group, Core { vector_bytes: 32, vector_registers: 16, int8_dot: 4, bf16_dot: 3, ..Core::SCALAR });
    check(&kernel).expect("a legal kernel");
    // A buffer has an element even where its tensor has none.
    let filled = |t: &Tensor| if t.is_empty() { Tensor::zeros(t.dtype(), &[1]) } else { t.clone() };
    let mut all: Vec<Tensor> = args.iter().map(filled).collect();
    for &t in &group.results {
        let decl = group.decl(t);
        let shape: Vec<usize> = decl.shape.iter().map(|&n| n as usize).collect();
        all.push(filled(&Tensor::zeros(decl.dtype, &shape)));
    }
    run_kernel(&kernel, &mut all).expect("runs");
    all.split_off(args.len())
}

fn agree(group: &Stages, args: &[Tensor]) {
    let want = eval_stages(group, args).expect("evaluates");
    for (w, g) in want.iter().zip(run(group, args)) {
        assert_eq!(if w.is_empty() { None } else { difference(w, &g) }, None);
    }
}

#[test]
fn routines_stand_among_expressions() {
    let (rows, n) = (300, 500);
    let mut b = Builder::new();
    let x = b.arg(&[rows, n], DType::I32);
    // Read by the routine only, twice: stored. A mere transposition: not stored.
    let scaled = b.map(&[rows, n], |b, i| b.read(x, i.to_vec()) * 3 + Scalar::int(1, DType::I32));
    let turned = b.map(&[n, rows], |b, i| b.read(scaled, [i[1].clone(), i[0].clone()]));
    // Of each row the sum up to each place, by parts, and the first place from which on it stays positive.
    let (sums, place) = b.routine(|r| {
        let sums = r.output(&[rows, n], DType::I32);
        let place = r.output(&[rows], DType::I64);
        r.parallel(rows, |r, row| {
            let sum = r.var(Scalar::int(0, DType::I32));
            r.for_range(0, n, |r, k| {
                r.set(sum, r.get(sum) + r.read(turned, [k.clone(), row.clone()]));
                r.store(sums, [row.clone(), k], r.get(sum));
            });
            let left = r.var(n);
            let positive = |r: &resat::loops::Nest<'_>| {
                let at = (r.get(left) - 1).max(Scalar::index(0));
                let last = r.read(sums, [row.clone(), at]);
                r.get(left).ge(Scalar::index(1)).and(last.ge(Scalar::int(1, DType::I32)))
            };
            r.while_(positive(r), |r| r.set(left, r.get(left) - 1));
            r.store(place, [row], r.get(left));
        });
        (sums, place)
    });
    let most = b.reduce(&[rows], &[n], Combine::Max, |b, i, r| b.read(sums, [i[0].clone(), r[0].clone()]));
    let out = b.map(&[rows], |b, i| b.read(most, [i[0].clone()]).cast(DType::I64) + b.read(place, [i[0].clone()]));
    let group = b.finish(vec![out, place]);
    let x = Tensor::from_i64_fn(DType::I32, &[rows as usize, n as usize], |i| (i as i64 * 7919 % 11) - 4);
    agree(&group, &[x]);
}

/// What several parallel loops have on the stack is more than a stack bears, what each has is not.
#[test]
fn parallel_loops_take_the_same_place_on_the_stack() {
    let (rows, n) = (64, 4096);
    let mut b = Builder::new();
    let x = b.arg(&[rows, n], DType::I32);
    let out = b.routine(|r| {
        let out = r.output(&[rows, n], DType::I32);
        let outside = r.local(&[2], DType::I32);
        r.store(outside, [Scalar::index(1)], Scalar::int(5, DType::I32));
        for (first, copies) in [(0, 10), (16, 20), (32, 15), (48, 29)] {
            r.parallel(16i64, |r, row| {
                let row = row + first;
                let small = r.local(&[n], DType::I64);
                let large = r.local(&[copies, n], DType::I32);
                r.for_each(&[copies, n], |r, i| {
                    let value = r.read(x, [row.clone(), i[1].clone()]);
                    r.store(large, i.to_vec(), value + i[0].clone().cast(DType::I32));
                });
                r.for_(n, |r, k| {
                    let value = r.read(large, [Scalar::index(copies - 1), k.clone()]);
                    r.store(small, [k], value.cast(DType::I64));
                });
                r.for_(n, |r, k| {
                    let value = r.read(small, [k.clone()]).cast(DType::I32);
                    r.store(out, [row.clone(), k], value);
                });
            });
        }
        out
    });
    let group = b.finish(vec![out]);
    let x = Tensor::from_i64_fn(DType::I32, &[rows as usize, n as usize], |i| (i as i64 * 7919 % 11) - 4);
    agree(&group, &[x]);
}

#[test]
fn counts_follow_the_results() {
    let mut b = Builder::new();
    let x = b.arg(&[4], DType::F32);
    let count = b.map(&[1], |_, _| Scalar::index(2));
    let tensor = b.map(&[4], |b, i| b.read(x, i.to_vec()));
    let counted = Operand::Counted { tensor, count };
    let stages = b.finish_with(&Operand::Tuple(vec![counted.clone(), x.into(), counted]));
    assert_eq!(stages.results, [tensor, x, tensor, count]);
    assert_eq!(stages.counted, [(0, 3), (2, 3)]);
}

#[test]
#[should_panic(expected = "another parallel loop")]
fn variables_stay_in_their_thread() {
    Builder::new().routine(|r| {
        let sum = r.var(0);
        r.parallel(4, |r, i| r.set(sum, i));
    });
}

/// An operator's evaluation, the plain evaluation of its definitions, and its kernel, on tensors.
fn compare(name: &str, attrs: &[(&str, AttrValue)], args: &[Tensor]) {
    let id = ops::op(name);
    let given: Vec<(Name, AttrValue)> = attrs.iter().map(|(n, v)| (Name::from(*n), v.clone())).collect();
    let attrs = ops::make_attrs(id, &given).expect("legal attributes");
    let mut b = Builder::new();
    let shape = |t: &Tensor| t.shape().iter().map(|&n| n as i64).collect::<Vec<_>>();
    let operands: Vec<Operand> = args.iter().map(|t| b.arg(&shape(t), t.dtype()).into()).collect();
    let out = id.op().lower(&attrs, &operands, &mut b).expect("is lowered");
    let group = b.finish_with(&out);
    let values: Vec<Value> = args.iter().map(|t| t.clone().into()).collect();
    let want = id.op().eval(&attrs, &values).expect("evaluates").flatten();
    let plain = eval_stages(&group, args).expect("evaluates");
    let plain = crate::common::cut_counted(&group, plain).expect("counts");
    for (k, (w, p)) in want.iter().zip(&plain).enumerate() {
        assert_eq!(difference(w, p), None, "{name} {attrs:?}: result {k} of {args:?}");
    }
    agree(&group, args);
}

#[test]
fn sorts_are_stable_and_know_nan() {
    let mut rng = Rng(1);
    for n in [0, 1, 5, 8, 9, 16, 17, 40, 64, 100] {
        // Few different values, so that many are equal.
        let x = Tensor::from_f64_fn(DType::F32, &[2, n], |_| match rng.next() % 7 {
            0 => f64::NAN,
            1 => -0.0,
            2 => f64::NEG_INFINITY,
            k => k as f64 - 3.0,
        });
        let numbers = Tensor::from_i64_fn(DType::U64, &[2, n], |_| -((rng.next() % 9) as i64) + 4);
        for ascend in [true, false] {
            for name in ["sort", "argsort"] {
                compare(name, &[("is_ascend", ascend.into())], std::slice::from_ref(&x));
                compare(name, &[("is_ascend", ascend.into())], std::slice::from_ref(&numbers));
            }
            compare("topk", &[("k", (n as i64 / 2).into()), ("is_ascend", ascend.into())], std::slice::from_ref(&x));
        }
    }
}

/// Most of a long line is skipped by vectors, whatever is in it: nothing but NaN, equals of the last of the best, the best at the very end.
#[test]
fn first_of_long_lines() {
    let mut rng = Rng(2);
    for (n, k) in [(300, 5), (700, 1), (517, 100), (385, 129)] {
        let mixed = Tensor::from_f64_fn(DType::F32, &[3, n], |i| match rng.next() % 40 {
            0 => f64::NAN,
            1 => f64::INFINITY,
            2 => -0.0,
            v if i < n => (v % 5) as f64,
            v => v as f64 * i as f64 - 20.0,
        });
        let none = Tensor::from_f64_fn(DType::F32, &[2, n], |_| f64::NAN);
        let rising = Tensor::from_i64_fn(DType::I16, &[2, n], |i| i as i64 - 200);
        let words = Tensor::from_i64_fn(DType::U64, &[2, n], |_| -((rng.next() % 9) as i64) + 4);
        for ascend in [true, false] {
            for x in [&mixed, &none, &rising, &words] {
                compare("topk", &[("k", (k as i64).into()), ("is_ascend", ascend.into())], std::slice::from_ref(x));
            }
        }
    }
}

#[test]
fn slices_are_set_wherever_they_are() {
    let x = Tensor::from_i64_fn(DType::I32, &[5, 6], |i| i as i64);
    let list = |v: &[i64]| Tensor::from_slice(&[v.len()], v);
    let v = |shape: [usize; 2]| Tensor::from_i64_fn(DType::I32, &shape, |i| 100 + i as i64);
    for (shape, begin, end, strides) in [
        ([5, 6], vec![], vec![], vec![]),
        ([2, 6], vec![1], vec![3], vec![]),
        ([2, 3], vec![-1, 5], vec![1, -7], vec![-2, -2]),
        ([2, 2], vec![3, -2], vec![100, 6], vec![1, 1]),
        ([5, 6], vec![], vec![], vec![-1, -1]),
    ] {
        compare("strided_set", &[], &[x.clone(), v(shape), list(&begin), list(&end), list(&strides)]);
    }
}

/// The same kernel where threads run but the first half of the iterations of each parallel loop.
fn first_halves(s: &mut Stmt) {
    match s {
        Stmt::Block(all) => all.iter_mut().for_each(first_halves),
        Stmt::For { kind: LoopKind::Parallel, extent, .. } => {
            *extent = Scalar::index(extent.as_int().expect("a number") / 2);
        }
        Stmt::For { body, .. } | Stmt::Let { body, .. } => first_halves(body),
        _ => {}
    }
}

/// Of an image with few weights, threads begin with the same rows whatever the operator: each finds in its cache what it wrote in the layer before.
#[test]
fn threads_begin_with_the_same_rows_of_an_image() {
    let (size, unit) = (48, Core { vector_bytes: 64, vector_registers: 32, ..Core::SCALAR });
    let window = |n: i64| -> Vec<(Name, AttrValue)> {
        vec![("kernel_size".into(), vec![n, n].into()), ("padding".into(), vec![n / 2; 4].into())]
    };
    let layouts = |kernel: &str| -> Vec<(Name, AttrValue)> {
        let all = [("data_layout", "NCHW16c"), ("kernel_layout", kernel), ("out_layout", "NCHW16c")];
        all.map(|(name, layout)| (name.into(), layout.into())).to_vec()
    };
    let plain = [window(1), layouts("OIHW16i16o"), vec![("channels".into(), 32.into())]].concat();
    let depthwise = vec![("channels".into(), 32.into()), ("groups".into(), 32.into())];
    for (op, weight, attrs) in [
        ("nn.contrib_conv2d_NCHWc", vec![2, 2, 1, 1, 16, 16], plain),
        (
            "nn.contrib_depthwise_conv2d_NCHWc",
            vec![2, 1, 3, 3, 1, 16],
            [window(3), layouts("OIHW1i16o"), depthwise].concat(),
        ),
    ] {
        let id = ops::lookup(op).expect("it is an operator");
        let attrs = ops::make_attrs(id, &attrs).expect("legal");
        let mut b = Builder::new();
        let image = [1, 2, size, size, 16];
        let args = [b.arg(&image, DType::F32).into(), b.arg(&weight, DType::F32).into()];
        let out = id.op().lower(&attrs, &args, &mut b).expect("lowers");
        let mut kernel = kernel("k", &b.finish_with(&out), unit);
        first_halves(&mut kernel.body);
        let of = |shape: &[i64]| shape.iter().map(|&n| n as usize).collect::<Vec<usize>>();
        let mut all = [
            Tensor::zeros(DType::F32, &of(&image)),
            Tensor::zeros(DType::F32, &of(&weight)),
            Tensor::zeros(DType::F32, &of(&image)),
        ];
        all[2].bytes_mut().fill(0xff);
        run_kernel(&kernel, &mut all).expect("runs");
        let is_written = |block: i64, row: i64| !all[2].get_f64((((block * size) + row) * size * 16) as usize).is_nan();
        let rows: Vec<Vec<i64>> = (0..2).map(|b| (0..size).filter(|&r| is_written(b, r)).collect()).collect();
        let near = |rows: &Vec<i64>| {
            rows.iter().copied().eq(0..rows.len() as i64) && (size / 2 - rows.len() as i64).abs() <= size / 8
        };
        assert!(rows.iter().all(near), "{op} of {weight:?}: {rows:?}");
    }
}
