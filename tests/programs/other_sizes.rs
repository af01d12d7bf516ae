//! Operators whose kernels serve all sizes: what was compiled for the first one is all that there is.
#![cfg(feature = "llvm")]

use crate::dynamic::{compiled_at, compiles_once, floats};

/// Numbers that are stored two to four apart, of rows of whole vectors, of less, and of what is left.
#[test]
fn interleaved_numbers_of_other_sizes_compile_nothing() {
    let operators = [
        "nn.upsampling(%x, scale_h=2f, scale_w=2f)",
        "nn.upsampling(%x, scale_h=2f, scale_w=2f, method=\"bilinear\")",
        "nn.relu(nn.depth_to_space(%x, block_size=2))",
        "layout_transform(strided_slice(%x, begin=[0], end=[3], strides=[1], axes=[1]), src_layout=\"NCHW\", dst_layout=\"NHWC\")",
    ];
    let sizes = [[5, 40], [9, 33], [16, 3], [2, 16], [4, 117], [3, 64]];
    for operator in operators {
        let text = format!("def @main(%x: Tensor[(?, 8, ?, ?), float32]) {{ {operator} }}");
        let inputs = |(n, [h, w]): (usize, [i64; 2])| vec![floats(&[1 + n as i64 % 3, 8, h, w], n as u64)];
        compiles_once(&text, &sizes.into_iter().enumerate().map(inputs).collect::<Vec<_>>());
    }
}

/// The first few of lines, most of which vectors skip, or of which there are hardly as many.
#[test]
fn first_of_lines_of_other_lengths_compile_nothing() {
    for k in [5, 40] {
        let text = format!("def @main(%x: Tensor[(?, ?), float32]) {{ topk(%x, k={k}) }}");
        let sizes = [[2, 700], [3, 168], [1, 167], [4, 41], [2, 40], [5, 1033]];
        compiles_once(&text, &sizes.map(|[n, m]| vec![floats(&[n, m], n as u64)]));
    }
}

/// Lines of which there is one by chance.
#[test]
fn single_lines_compile_nothing() {
    for operator in ["sort(%x, axis=-1)", "argsort(%x)", "cumsum(%x, axis=1)", "cumprod(%x, axis=1, exclusive=True)"] {
        let text = format!("def @main(%x: Tensor[(?, ?), float32]) {{ {operator} }}");
        compiles_once(
            &text,
            &[[2, 40], [3, 33], [1, 37], [4, 50], [1, 64]].map(|[n, m]| vec![floats(&[n, m], n as u64)]),
        );
    }
}

/// Whether the last window reaches beyond the data differs from size to size: there is one kernel for both.
#[test]
fn windows_that_end_where_data_does_compile_nothing() {
    let operators = [
        "nn.max_pool2d(%x, pool_size=[3, 3], strides=[2, 2], ceil_mode=True)",
        "nn.avg_pool2d(%x, pool_size=[3, 3], strides=[2, 2], ceil_mode=True)",
        "nn.avg_pool2d(%x, pool_size=[3, 3], strides=[2, 2], padding=[1, 1])",
        "nn.max_pool2d(%x, pool_size=[3, 3], strides=[2, 2], padding=[0, 0, 1, 1])",
    ];
    let sizes = [[16, 23], [15, 15], [16, 16], [7, 16], [21, 8], [33, 47]];
    for operator in operators {
        let text = format!("def @main(%x: Tensor[(?, 8, ?, ?), float32]) {{ {operator} }}");
        let inputs = |(n, [h, w]): (usize, [i64; 2])| vec![floats(&[1 + n as i64 % 3, 8, h, w], n as u64)];
        compiles_once(&text, &sizes.into_iter().enumerate().map(inputs).collect::<Vec<_>>());
    }
    let text = "def @main(%x: Tensor[(?, 8, ?, ?), float32], %w: Tensor[(16, 8, 3, 3), float32]) {
        nn.conv2d(%x, %w, strides=[2, 2], padding=[0, 0, 1, 1], channels=16, kernel_size=[3, 3]) }";
    let inputs = |(n, [h, w]): (usize, [i64; 2])| {
        vec![floats(&[1 + n as i64 % 3, 8, h, w], n as u64), floats(&[16, 8, 3, 3], 9)]
    };
    compiles_once(text, &sizes.into_iter().enumerate().map(inputs).collect::<Vec<_>>());
}

/// Taps that lie far apart see data of some results or of none, as images are larger or smaller than the way between them; padding is as wide as that, or
/// narrower on one side, or wider.
#[test]
fn far_taps_of_other_sizes_compile_nothing() {
    for (dilation, padding, taps) in
        [("12, 12", "12, 12", [3, 3]), ("7, 2", "7, 0, 3, 4", [3, 3]), ("2, 9", "3, 20", [3, 5])]
    {
        let [r, c] = taps;
        let text = format!(
            "def @main(%x: Tensor[(?, 2, ?, ?, 16), float32], %w: Tensor[(3, 2, {r}, {c}, 16, 16), float32]) {{
            nn.relu(nn.contrib_conv2d_NCHWc(%x, %w, dilation=[{dilation}], padding=[{padding}], channels=48, kernel_size=[{r}, {c}],
                data_layout=\"NCHW16c\", kernel_layout=\"OIHW16i16o\", out_layout=\"NCHW16c\")) }}"
        );
        let sizes = [[30, 33], [14, 14], [11, 37], [5, 13], [41, 12], [12, 12]];
        let inputs = |(n, [h, w]): (usize, [i64; 2])| {
            let images = [1, 2, 1, 3, 1, 5][n];
            vec![floats(&[images, 2, h, w, 16], n as u64), floats(&[3, 2, r, c, 16, 16], 9)]
        };
        compiles_once(&text, &sizes.into_iter().enumerate().map(inputs).collect::<Vec<_>>());
    }
}

/// Tiles of Winograd's algorithm come out even at some sizes, with and without padding, and images may be a few tiles or many.
#[test]
fn winograd_of_other_sizes_compiles_nothing() {
    for padding in ["0, 0", "1, 1"] {
        let text = format!(
            "def @main(%x: Tensor[(?, 2, ?, ?, 16), float32], %w: Tensor[(2, 6, 6, 32, 16), float32]) {{
            nn.contrib_conv2d_winograd_without_weight_transform(%x, %w, tile_size=4, padding=[{padding}], channels=32,
                kernel_size=[3, 3], data_layout=\"NCHW16c\", kernel_layout=\"OHWI16o\", out_layout=\"NCHW16c\") }}"
        );
        let sizes = [[60, 60], [18, 18], [14, 18], [18, 9], [6, 6], [33, 26], [62, 41]];
        let inputs = |(n, [h, w]): (usize, [i64; 2])| {
            let images = [1, 1, 2, 3, 1, 5, 2][n];
            vec![floats(&[images, 2, h, w, 16], n as u64), floats(&[2, 6, 6, 32, 16], 9)]
        };
        compiles_once(&text, &sizes.into_iter().enumerate().map(inputs).collect::<Vec<_>>());
    }
}

/// MobileNet's blocks go through images in patches, of which some are narrower than a register tile, one is all there is, or the last ones are smaller.
#[test]
fn bottlenecks_of_other_sizes_compile_nothing() {
    for (attrs, taps, blocks) in [
        ("strides=[1, 1], padding=[1, 1]", 3, 2),
        ("strides=[2, 2], padding=[0, 1, 2, 0]", 3, 2),
        ("strides=[2, 1], padding=[2, 2]", 5, 36),
    ] {
        let text = format!(
            "def @main(%x: Tensor[(?, 1, ?, ?, 8), float32], %w1: Tensor[({blocks}, 1, 1, 1, 8, 16), float32],
              %b1: Tensor[(1, {blocks}, 1, 1, 16), float32], %w2: Tensor[({blocks}, 1, {taps}, {taps}, 1, 16), float32],
              %b2: Tensor[(1, {blocks}, 1, 1, 16), float32], %w3: Tensor[(1, {blocks}, 1, 1, 16, 24), float32]) {{
            nn.inverted_bottleneck(%x, %w1, %b1, %w2, %b2, %w3, {attrs}, a_min=0f, a_max=6f) }}"
        );
        let sizes = [[1, 30, 34], [2, 9, 14], [1, 5, 133], [3, 17, 5], [1, 6, 6], [2, 33, 65], [1, 70, 151]];
        // Each width is cut into register tiles in another way.
        let sizes = sizes.into_iter().chain((3..=40).map(|w| [1, 5, w]));
        let inputs = |(n, [images, h, w]): (usize, [i64; 3])| {
            let weights = [
                vec![blocks, 1, 1, 1, 8, 16],
                vec![1, blocks, 1, 1, 16],
                vec![blocks, 1, taps, taps, 1, 16],
                vec![1, blocks, 1, 1, 16],
                vec![1, blocks, 1, 1, 16, 24],
            ];
            let weights = weights.iter().enumerate().map(|(i, shape)| floats(shape, 20 + i as u64));
            [floats(&[images, 1, h, w, 8], n as u64)].into_iter().chain(weights).collect()
        };
        compiles_once(&text, &sizes.enumerate().map(inputs).collect::<Vec<_>>());
    }
}

/// Windows that reach over edges, at widths of which some are of whole tiles, some of tiles that have places in common, some of tiles of half the size, and
/// some too short for any.
#[test]
fn edges_at_all_widths_compile_nothing() {
    let convolution = |c: usize, k: usize, groups: usize, more: &str| {
        let per_group = 16 / groups;
        format!(
            "def @main(%x: Tensor[(?, 16, ?, ?), float32], %w: Tensor[({c}, {per_group}, {k}, {k}), float32]) {{
                nn.relu(nn.conv2d(%x, %w, {more}, channels={c}, groups={groups}, kernel_size=[{k}, {k}])) }}"
        )
    };
    let programs = [
        (convolution(16, 3, 16, "padding=[1, 1, 1, 1]"), Some((16, 1, 3))),
        (convolution(16, 3, 16, "padding=[1, 1, 1, 1], strides=[2, 2]"), Some((16, 1, 3))),
        (convolution(16, 3, 16, "padding=[0, 0, 1, 1], strides=[2, 2]"), Some((16, 1, 3))),
        (convolution(16, 3, 16, "padding=[2, 2, 2, 2], dilation=[2, 2]"), Some((16, 1, 3))),
        (convolution(16, 5, 16, "padding=[2, 2, 2, 2]"), Some((16, 1, 5))),
        (convolution(16, 5, 16, "padding=[2, 1, 2, 3], strides=[2, 2]"), Some((16, 1, 5))),
        (convolution(16, 7, 16, "padding=[3, 3, 3, 3]"), Some((16, 1, 7))),
        (convolution(32, 3, 1, "padding=[1, 1, 1, 1]"), Some((32, 16, 3))),
        (convolution(32, 3, 1, "padding=[1, 1, 1, 1], strides=[2, 2]"), Some((32, 16, 3))),
        (
            "def @main(%x: Tensor[(?, 16, ?, ?), float32]) {
            nn.avg_pool2d(%x, pool_size=[3, 3], padding=[1, 1, 1, 1]) }"
                .to_owned(),
            None,
        ),
    ];
    // What is decided at the first width holds at all others.
    let widths: [Vec<i64>; 2] = [(7..33).chain([40, 55, 56, 57, 64, 113, 5, 6]).collect(), (5..33).collect()];
    for (text, weight) in programs {
        let inputs = |(n, &w): (usize, &i64)| {
            let x = floats(&[1 + n as i64 % 2, 16, 5 + (n as i64 * 3) % 7, w], n as u64);
            let weight = weight.map(|(c, g, k)| floats(&[c, g, k, k], 99));
            [x].into_iter().chain(weight).collect::<Vec<_>>()
        };
        for widths in &widths {
            compiles_once(&text, &widths.iter().enumerate().map(inputs).collect::<Vec<_>>());
        }
    }
}

/// Attention of other numbers of queries and keys: scores lie on the threads' stacks. Where there are more keys than fit there, one further kernel serves
/// all longer ones; and there may be but one key, of which there is nothing to sum up, at the first size or a later one.
#[test]
fn attention_of_other_lengths_compiles_nothing() {
    let text = "def @main(%q: Tensor[(?, ?, 2, 16), float32], %k: Tensor[(?, ?, 2, 16), float32], %v: Tensor[(?, ?, 2, 16), float32],
                      %m: Tensor[(?, 1, 1, ?), float32]) {
        nn.attention(%q, %k, %v, %m, scale=0.25f, query_layout=\"BSHD\", key_layout=\"BSHD\", value_layout=\"BSHD\", out_layout=\"BSHD\") }";
    let inputs = |&[n, queries, keys]: &[i64; 3]| {
        let of = |places: i64, seed: u64| floats(&[n, places, 2, 16], seed);
        vec![of(queries, 1), of(keys, 2), of(keys, 3), floats(&[n, 1, 1, keys], 4)]
    };
    let all = |sizes: &[[i64; 3]]| sizes.iter().map(inputs).collect::<Vec<_>>();
    compiles_once(text, &all(&[[2, 40, 37], [1, 7, 77], [3, 20, 500], [1, 33, 33], [2, 14, 15], [1, 3, 1100]]));
    // The first size of all has but one key, of which there is nothing to sum up.
    compiled_at(text, &all(&[[1, 5, 1], [2, 17, 40], [1, 1, 1], [1, 1, 90]]));
    let long = [[1, 15, 20], [2, 15, 17000], [1, 2, 17500], [1, 9, 30], [2, 4, 20000]];
    let compiled = compiled_at(text, &all(&long));
    assert_eq!(compiled[1], compiled[4], "{compiled:?}");
}

/// Rows of a product that are too many for the second cache go in blocks, as many as there are rows for; few are one block. What is decided at one row, or
/// a few, holds for many.
#[test]
fn products_of_other_rows_compile_nothing() {
    let text = "def @main(%x: Tensor[(?, 1024), float32], %w: Tensor[(96, 1024), float32], %b: Tensor[(96), float32]) {
        add(nn.dense(%x, %w, units=96), %b) }";
    let few = [1, 2, 9, 4, 3, 33, 5];
    for sizes in [[900, 5, 333, 57, 601, 1, 420], few, [2, 1, 40, 8, 7, 3, 6], [4, 3, 2, 1, 12, 64, 21]] {
        let inputs = sizes.map(|n| {
            let [x, w, b] = [[n, 1024].as_slice(), &[96, 1024], &[96]].map(|shape| floats(shape, n as u64));
            vec![x, w, b]
        });
        compiles_once(text, &inputs);
    }
}
