use super::*;
use serde_json::json;

fn one(text: &str) -> Node {
    let (mut documents, fault) = documents(text);
    assert!(fault.is_none(), "{fault:?}");
    assert_eq!(documents.len(), 1, "{text}");
    documents.remove(0)
}

fn fault(text: &str) -> Fault {
    documents(text).1.unwrap_or_else(|| panic!("no fault: {text}"))
}

#[test]
fn documents_anchors_merges_and_lines() {
    let node = one("# a pod\na: &x {p: 1, q: two}\nb:\n  <<: *x\n  p: 3\nc: [*x, !!str 5, '6']\n7: yes\n");
    let two = json!({"p": 1, "q": "two"});
    assert_eq!(node.value(), json!({"a": two, "b": {"p": 3, "q": "two"}, "c": [two, "5", "6"], "7": true}));
    assert_eq!(node.locate(&["b".into(), "p".into()]), (5, 6));
    assert_eq!(node.locate(&["c".into(), 1.into()]), (6, 9));
    // A way that ends early leads to the last value on it.
    assert_eq!(node.locate(&["b".into(), "no".into(), 3.into()]).0, 4);

    let (all, none) = documents("---\n---\na: 1\n---\n# nothing\n---\nb: 2\n...\n");
    assert!(none.is_none());
    assert_eq!(all.iter().map(Node::value).collect::<Vec<_>>(), [json!({"a": 1}), json!({"b": 2})]);
    assert!(documents("").0.is_empty());
}

#[test]
fn what_is_wrong_has_a_line_and_good_documents_before_it_stay() {
    let (good, wrong) = documents("a: 1\n---\nb: [1, 2\nc: }");
    assert_eq!(good.len(), 1);
    assert!(wrong.unwrap().position.0 >= 3);
    assert_eq!(fault("a: 1\nb: 2\na: 3\n").position, (3, 1));
    assert_eq!(fault("a: .inf").position, (1, 4));
    for text in ["? [a]\n: b\n", "a: *nowhere", "a: &x [*x]", "<<: 5", "a: 'open", "a: b: c"] {
        assert!(matches!(fault(text).problem, Problem::Syntax(_)), "{text}");
    }
}

#[test]
fn depth_and_alias_bombs_are_refused() {
    let deep = format!("{}{}", "[".repeat(100_000), "]".repeat(100_000));
    let problem = fault(&deep).problem;
    assert!(matches!(&problem, Problem::TooComplex(_) | Problem::Syntax(_)), "{problem:?}");
    let deep: String = (0..500).map(|depth| format!("{}a:\n", " ".repeat(depth))).collect();
    assert!(matches!(fault(&deep).problem, Problem::TooComplex(_)));

    let mut bomb = "a0: &a0 [x, x, x, x, x, x, x, x, x, x]\n".to_owned();
    for level in 1..30 {
        let inner = vec![format!("*a{}", level - 1); 10].join(", ");
        bomb.push_str(&format!("a{level}: &a{level} [{inner}]\n"));
    }
    assert!(matches!(fault(&bomb).problem, Problem::TooComplex(_)));
    // Each alias adds the depth of what it stands for.
    let mut tower = format!("a0: &a0 {}{}\n", "[".repeat(95), "]".repeat(95));
    for level in 1..100 {
        tower.push_str(&format!("a{level}: &a{level} {}*a{}{}\n", "[".repeat(95), level - 1, "]".repeat(95)));
    }
    assert!(matches!(fault(&tower).problem, Problem::TooComplex(_)));
    let long = format!("a: &a {}\nb: [{}]\n", "x".repeat(1 << 20), vec!["*a"; 100].join(", "));
    assert!(matches!(fault(&long).problem, Problem::TooComplex(_)));
}
