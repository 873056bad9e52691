//! Verbs that change a cluster: help, and errors before any request.

use std::net::TcpListener;

use expect_test::expect;

use crate::fixture::Place;

#[test]
fn what_is_gone_for_good_must_be_meant() {
    let place = Place::new();
    expect![[r#"
        exit 2
        error: coordinator 3 would be removed; this cannot be undone
        hint: pass --yes to confirm
    "#]]
    .assert_eq(&place.fails(&["cluster", "remove", "3"]));
    expect![[r#"
        exit 2
        error: dataset `train` would be removed from the cluster; this cannot be undone
        hint: pass --yes to confirm
    "#]]
    .assert_eq(&place.fails(&["dataset", "remove", "train"]));
    expect![[r#"
        exit 2
        error: job `digits` would be removed; this cannot be undone
        hint: pass --yes to confirm
    "#]]
    .assert_eq(&place.fails(&["job", "remove", "digits"]));
}

#[test]
fn numbers_and_addresses_that_are_none() {
    let place = Place::new();
    expect![[r#"
        exit 2
        error: invalid value '0' for '<NODE>': 0 is not in 1..18446744073709551615

        For more information, try '--help'.
    "#]]
    .assert_eq(&place.fails(&["cluster", "add", "0", "a:1"]));
    expect![[r#"
        exit 2
        error: invalid value 'here' for '<HOST:PORT>': write HOST:PORT, such as 127.0.0.1:7070

        For more information, try '--help'.
    "#]]
    .assert_eq(&place.fails(&["cluster", "add", "4", "here"]));
    expect![[r#"
        exit 2
        error: invalid value 'x' for '[NODE]': invalid digit found in string

        For more information, try '--help'.
    "#]]
    .assert_eq(&place.fails(&["cluster", "transfer-leader", "x"]));
    expect![[r#"
        exit 2
        error: invalid value 'a:1,,b:2' for '--coordinator <HOST:PORT>': write HOST:PORT, such as 127.0.0.1:7070

        For more information, try '--help'.
    "#]].assert_eq(&place.fails(&["status", "--coordinator", "a:1,,b:2"]));
}

#[test]
fn each_address_of_a_list_is_named_with_what_it_said() {
    let place = Place::new();
    let closed = || TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().to_string();
    let (one, two) = (closed(), closed());
    let silent = TcpListener::bind("127.0.0.1:0").unwrap();
    let three = silent.local_addr().unwrap().to_string();
    let said = |addresses: &[&str]| {
        let list = addresses.join(",");
        let args = ["cluster", "status", "--timeout", "300ms", "--coordinator", &list];
        let said = place.fails(&args);
        said.replace(&one, "$ONE").replace(&two, "$TWO").replace(&three, "$THREE")
    };
    expect![[r#"
        exit 6
        error: no coordinator answers: $ONE: Connection refused (os error 111), $TWO: Connection refused (os error 111)
        hint: check the address (--coordinator or SHARDFEED_COORDINATOR) and that `shardfeed coordinator start` runs there
    "#]].assert_eq(&said(&[&one, &two]));
    let said = said(&[&one, &three]);
    assert!(said.starts_with("exit 6\nerror: no coordinator answers: $ONE: Connection"), "{said}");
    assert!(said.contains("$THREE: no answer within "), "{said}");
}

#[test]
fn a_backup_overwrites_nothing() {
    let place = Place::new();
    place.file("backup", "precious");
    expect![[r#"
        exit 1
        error: backup is there already
        hint: choose another name, or remove it yourself
    "#]]
    .assert_eq(&place.fails(&["cluster", "snapshot", "save", "backup"]));
    let args = ["cluster", "snapshot", "save", "none/backup"];
    expect![[r#"
        exit 1
        error: cannot write none/backup
          cause: entity not found
        hint: check the path
    "#]]
    .assert_eq(&place.fails(&args));
    assert_eq!(place.names("."), ["backup"]);
}
