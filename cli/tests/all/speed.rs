//! Errors of the verbs about speed.

use expect_test::expect;

use crate::fixture::Place;

#[test]
fn what_has_no_meaning_is_refused() {
    let place = Place::with_shards(&[4]);
    expect![[r#"
        exit 2
        error: the following required arguments were not provided:
          <JOB>

        Usage: shardfeed bench <JOB>

        For more information, try '--help'.
    "#]]
    .assert_eq(&place.fails(&["bench"]));
    expect![[r#"
        exit 1
        error: an epoch has no batch of 8 for 1 rank(s)
        hint: use a smaller --batch-size
    "#]]
    .assert_eq(&place.fails(&["bench", "--files", "s-*.tfrecord", "--batch-size", "8"]));
    expect![[r#"
        exit 2
        error: invalid value '2min' for '--duration <TIME>': must be 60s at most

        For more information, try '--help'.
    "#]]
    .assert_eq(&place.fails(&["trace", "t.json", "--duration", "2min"]));
}
