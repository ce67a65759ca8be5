//! Documents are well-formed, and points are at the positions of their values.

use super::axis::Axis;
use super::*;

#[test]
fn an_axis_covers_its_values_with_few_round_ticks() {
    let check = |scale: Scale, values: &[f64]| {
        let axis = Axis::over(scale, values.iter().copied());
        let drawn = axis.below("x");
        let ticks = drawn.matches("text-anchor=\"middle\"").count() - 1;
        assert!((2..=12).contains(&ticks), "{values:?}: {ticks} ticks");
        for pair in values.windows(2).filter(|pair| pair[0] < pair[1]) {
            assert!(axis.x(pair[0]) < axis.x(pair[1]), "{pair:?} of {values:?} are in order");
        }
        for &value in values {
            assert!((LEFT..=WIDTH - RIGHT).contains(&axis.x(value)), "{value} of {values:?}");
        }
    };
    check(Scale::Linear, &[0.0, 0.3, 7.2]);
    check(Scale::Linear, &[0.0]);
    check(Scale::Linear, &[1.0, 123_456.0]);
    check(Scale::Log, &[0.004, 0.2, 60.0]);
    check(Scale::Log, &[1.0]);
    check(Scale::Linear, &[]);
}

fn line(name: &str, dash: usize) -> Line {
    let points = vec![(1.0, 2.0), (2.0, f64::INFINITY), (3.0, 4.0)];
    Line { name: name.into(), points, colour: 0, dash: Dash::of(dash) }
}

#[test]
fn long_names_lose_their_middle() {
    assert_eq!(shortened("static:8 p99"), "static:8 p99");
    let short = shortened("Qwen/Qwen2.5-0.5B-Instruct p99");
    assert_eq!((short.as_str(), short.chars().count()), ("Qwen/Qwen…struct p99", NAME_CHARACTERS));
}

#[test]
fn documents_are_well_formed_and_escape_names() {
    let lines = [line("a <b> & c", 0), line("a name that is far too long for the legend p99", 2)];
    let about = Chart { title: "T", x: "rate", y: "ms", x_scale: Scale::Linear, y_scale: Scale::Log };
    let request = Request { sent: 0.0, first_token: Some(1.0), end: 2.0, failed: false };
    let cut = Request { sent: 0.5, first_token: None, end: 0.9, failed: true };
    let document = document(&[
        chart(&about, &lines),
        bars("memory", &["live", "waste"], &[Bar { name: "x".into(), parts: vec![0.75, 0.25] }]),
        waterfall("requests", &[request, cut]),
    ]);
    assert!(
        document.contains("a &lt;b&gt; &amp; c") && !document.contains("NaN") && !document.contains("inf")
    );
    let (mut open, mut rest) = (0, &document[..]);
    while let Some(start) = rest.find('<') {
        let end = rest.find('>').expect("a tag ends");
        let tag = &rest[start..=end];
        open += if tag.starts_with("</") { -1 } else { i32::from(!tag.ends_with("/>")) };
        rest = &rest[end + 1..];
    }
    assert_eq!(open, 0, "every tag is closed");
}

#[test]
fn a_line_of_one_point_is_a_dash_and_one_without_a_name_is_not_in_the_legend() {
    let about = Chart { title: "T", x: "rate", y: "ms", x_scale: Scale::Linear, y_scale: Scale::Linear };
    let one = |name: &str, dash| Line { points: vec![(6.0, 2.0)], ..line(name, dash) };
    let lines = |named: &str| {
        chart(&about, &[one(named, 0), one(named, 1), one(named, 2)]).matches("<polyline").count()
    };
    assert_eq!((lines("p50"), lines("")), (6, 3));
}
