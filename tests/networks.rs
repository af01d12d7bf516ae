//! Networks by recipe: they are what the recipes say.

#[path = "../benches/networks/mod.rs"]
mod networks;

use networks::{TENSAT, bert, counts, layered, resnet50};
use resat::{infer::infer_types, ir::Type, relay::text};

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
