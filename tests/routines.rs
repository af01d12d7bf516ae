//! Routines among tensor expressions: scheduled kernels, run plainly, against the plain evaluation of the definitions.

mod common;

use common::difference;
use resat::{
    loops::{Builder, Combine, Operand, Scalar, Stages, check, eval_stages, run_kernel},
    lower::{VectorUnit, kernel},
    tensor::{DType, Tensor},
};

/// The results of a group by its kernel.
fn run(group: &Stages, args: &[Tensor]) -> Vec<Tensor> {
    let kernel = kernel("k", group, VectorUnit { bytes: 32, registers: 16 });
    check(&kernel).expect("a legal kernel");
    let mut all = args.to_vec();
    for &t in &group.results {
        let decl = group.decl(t);
        let shape: Vec<usize> = decl.shape.iter().map(|&n| n as usize).collect();
        // A buffer has an element even where its tensor has none.
        let shape = if shape.contains(&0) { vec![1] } else { shape };
        all.push(Tensor::zeros(decl.dtype, &shape));
    }
    run_kernel(&kernel, &mut all).expect("runs");
    all.split_off(args.len())
}

fn agree(group: &Stages, args: &[Tensor]) {
    let want = eval_stages(group, args).expect("evaluates");
    for (w, g) in want.iter().zip(run(group, args)) {
        assert_eq!(difference(w, &g), None);
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
