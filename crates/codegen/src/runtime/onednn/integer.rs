//! Integer arithmetic between the library's products: exact, where the library would go through f32.

use super::graph::{Fixed, Rescale};
use crate::{
    runtime::abi::ResatCtx,
    tensor::{DType, Tensor},
};

/// Adds a known vector along the channels, or one number to each.
pub(super) fn add_vector(sums: &mut [i32], t: &Tensor) {
    let vector = t.to_i64_vec();
    for (c, sum) in sums.iter_mut().enumerate() {
        *sum = sum.wrapping_add(vector[if vector.len() == 1 { 0 } else { c }] as i32);
    }
}

/// [`Rescale`], a number for each channel.
#[derive(Clone, Debug)]
pub(super) struct Channels {
    pub(super) zero: Vec<i32>,
    pub(super) significand: Vec<i64>,
    pub(super) left: Vec<i64>,
    pub(super) right: Vec<i64>,
    pub(super) multiplies: bool,
    pub(super) away: bool,
    pub(super) to_zero: i32,
}

impl Channels {
    pub(super) fn new(r: &Rescale, channels: usize) -> Channels {
        fn each<T: Copy, U>(all: &[T], n: usize, f: impl Fn(T) -> U) -> Vec<U> {
            (0..n).map(|c| f(all[if all.len() == 1 { 0 } else { c }])).collect()
        }
        let one = [Fixed { significand: 0, left: 0, right: 1 }];
        let factor = r.factor.as_deref().unwrap_or(&one);
        Channels {
            zero: each(&r.zero, channels, |z| z as i32),
            significand: each(factor, channels, |f| f.significand),
            left: each(factor, channels, |f| i64::from(f.left)),
            right: each(factor, channels, |f| i64::from(f.right)),
            multiplies: r.factor.is_some(),
            away: r.away,
            to_zero: r.to_zero as i32,
        }
    }

    #[inline(always)]
    fn apply(&self, values: &mut [i32]) {
        let n = values.len();
        let (zero, significand) = (&self.zero[..n], &self.significand[..n]);
        let (left, right) = (&self.left[..n], &self.right[..n]);
        for c in 0..n {
            let x = values[c].wrapping_sub(zero[c]);
            let moved = if self.multiplies {
                let product = (i64::from(x) << left[c]).wrapping_mul(significand[c]);
                let half = 1i64 << (right[c] - 1);
                let round = half - i64::from(self.away && product < 0);
                (product.wrapping_add(round) >> right[c]) as i32
            } else {
                x
            };
            values[c] = moved.wrapping_add(self.to_zero);
        }
    }
}

/// A tensor whose channels lie next to each other.
#[derive(Copy, Clone)]
pub(super) struct Rows {
    pub(super) at: *mut u8,
    pub(super) dtype: DType,
}

impl Rows {
    /// The elements from `first` on, added to `values`.
    ///
    /// # Safety
    /// There are that many.
    #[inline(always)]
    unsafe fn add_to(self, first: usize, values: &mut [i32], negative: bool) {
        macro_rules! add {
            ($t:ty) => {{
                // SAFETY: as the caller promises; memory of tensors is aligned.
                let part = unsafe { std::slice::from_raw_parts(self.at.cast::<$t>().add(first), values.len()) };
                match negative {
                    true => values.iter_mut().zip(part).for_each(|(v, &x)| *v = v.wrapping_sub(x as i32)),
                    false => values.iter_mut().zip(part).for_each(|(v, &x)| *v = v.wrapping_add(x as i32)),
                }
            }};
        }
        match self.dtype {
            DType::U8 => add!(u8),
            DType::I8 => add!(i8),
            _ => add!(i32),
        }
    }

    /// Writes elements from `first` on.
    ///
    /// # Safety
    /// There are that many, and nobody else looks at them.
    #[inline(always)]
    unsafe fn write(self, first: usize, values: &[i32], (low, high): (i32, i32)) {
        macro_rules! write {
            ($t:ty) => {{
                // SAFETY: as the caller promises.
                let part = unsafe { std::slice::from_raw_parts_mut(self.at.cast::<$t>().add(first), values.len()) };
                part.iter_mut().zip(values).for_each(|(p, &v)| *p = v.clamp(low, high) as $t);
            }};
        }
        match self.dtype {
            DType::U8 => write!(u8),
            DType::I8 => write!(i8),
            _ => write!(i32),
        }
    }
}

/// One step, with where its tensors are.
pub(super) struct Job<'a> {
    pub(super) terms: Vec<(Rows, bool)>,
    pub(super) per_channel: &'a [i32],
    pub(super) more_per_channel: Vec<Rows>,
    pub(super) rescale: Option<&'a Channels>,
    pub(super) rescaled: Vec<(Rows, &'a Channels)>,
    pub(super) offset: i32,
    pub(super) range: (i32, i32),
    pub(super) out: Rows,
    pub(super) rows: usize,
    pub(super) channels: usize,
}

impl Job<'_> {
    /// # Safety
    /// Every tensor has `rows` times `channels` elements, vectors have `channels`; nobody writes what is read, or looks at the result.
    #[inline(always)]
    unsafe fn part(&self, begin: usize, end: usize) {
        let n = self.channels;
        let mut base = self.per_channel.to_vec();
        base.resize(n, 0);
        for v in &self.more_per_channel {
            // SAFETY: as the caller promises, here and below.
            unsafe { v.add_to(0, &mut base, false) };
        }
        let (mut sum, mut one) = (vec![0i32; n], vec![0i32; n]);
        for row in begin..end {
            let first = row * n;
            sum.copy_from_slice(&base);
            for &(t, negative) in &self.terms {
                // SAFETY: as the caller promises of these rows.
                unsafe { t.add_to(first, &mut sum, negative) };
            }
            if let Some(r) = self.rescale {
                r.apply(&mut sum);
            }
            for &(t, r) in &self.rescaled {
                one.fill(0);
                // SAFETY: as above.
                unsafe { t.add_to(first, &mut one, false) };
                r.apply(&mut one);
                sum.iter_mut().zip(&one).for_each(|(s, &v)| *s = s.wrapping_add(v));
            }
            if self.offset != 0 {
                sum.iter_mut().for_each(|s| *s = s.wrapping_add(self.offset));
            }
            // SAFETY: as above; the rows lie within the result.
            unsafe { self.out.write(first, &sum, self.range) };
        }
    }

    /// The same, with the vectors of the machine.
    ///
    /// # Safety
    /// As of `part`; the machine has these instructions.
    #[cfg(target_arch = "x86_64")]
    #[target_feature(enable = "avx512f,avx512dq,avx512bw,avx512vl")]
    unsafe fn part_avx512(&self, begin: usize, end: usize) {
        // SAFETY: as the caller promises.
        unsafe { self.part(begin, end) }
    }

    /// As above.
    ///
    /// # Safety
    /// As above.
    #[cfg(target_arch = "x86_64")]
    #[target_feature(enable = "avx2")]
    unsafe fn part_avx2(&self, begin: usize, end: usize) {
        // SAFETY: as the caller promises.
        unsafe { self.part(begin, end) }
    }

    /// Runs it, on the program's threads.
    ///
    /// # Safety
    /// As of `part`.
    pub(super) unsafe fn run(&self, ctx: &ResatCtx) {
        unsafe extern "C" fn body(env: *mut u8, begin: i64, end: i64) {
            // SAFETY: `env` is the job; parts do not overlap.
            unsafe {
                let job = &*env.cast::<Job<'_>>();
                let per = job.rows_per_part();
                let (begin, end) = (begin as usize * per, (end as usize * per).min(job.rows));
                #[cfg(target_arch = "x86_64")]
                {
                    use std::arch::is_x86_feature_detected as has;
                    if has!("avx512f") && has!("avx512dq") && has!("avx512bw") && has!("avx512vl") {
                        return job.part_avx512(begin, end);
                    }
                    if has!("avx2") {
                        return job.part_avx2(begin, end);
                    }
                }
                job.part(begin, end);
            }
        }
        let env = std::ptr::from_ref(self).cast_mut().cast::<u8>();
        let parts = self.rows.div_ceil(self.rows_per_part()) as i64;
        // SAFETY: `body` and its job belong together; the job lives until all parts are done.
        unsafe {
            match ctx.threads > 1 && parts > 1 {
                true => (ctx.parallel_for)(ctx, body, env, parts),
                false => body(env, 0, parts),
            }
        }
    }

    /// Rows of which a thread takes at least so many: some thousand elements.
    fn rows_per_part(&self) -> usize {
        const ELEMENTS: usize = 8192;
        (ELEMENTS / self.channels.max(1)).max(1)
    }
}
