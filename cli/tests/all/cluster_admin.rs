//! Verbs that change a cluster: help, and what is refused before anything is asked.

use std::net::TcpListener;

use expect_test::expect;

use crate::fixture::Place;
use crate::help::check;

#[test]
fn help_of_the_verbs_on_coordinators() {
    check(&["cluster"], &expect![[""]]);
    check(&["cluster", "status"], &expect![[""]]);
    check(&["cluster", "add"], &expect![[""]]);
    check(&["cluster", "remove"], &expect![[""]]);
    check(&["cluster", "transfer-leader"], &expect![[""]]);
    check(&["cluster", "snapshot"], &expect![[""]]);
    check(&["cluster", "snapshot", "save"], &expect![[""]]);
}

#[test]
fn help_of_the_verbs_that_give_and_take_work() {
    check(&["worker", "cordon"], &expect![[""]]);
    check(&["worker", "uncordon"], &expect![[""]]);
    check(&["worker", "drain"], &expect![[""]]);
}

#[test]
fn help_of_the_verbs_that_remove() {
    check(&["dataset", "remove"], &expect![[""]]);
    check(&["job", "remove"], &expect![[""]]);
}

#[test]
fn what_is_gone_for_good_must_be_meant() {
    let place = Place::new();
    expect![[""]].assert_eq(&place.fails(&["cluster", "remove", "3"]));
    expect![[""]].assert_eq(&place.fails(&["dataset", "remove", "train"]));
    expect![[""]].assert_eq(&place.fails(&["job", "remove", "digits"]));
}

#[test]
fn numbers_and_addresses_that_are_none() {
    let place = Place::new();
    expect![[""]].assert_eq(&place.fails(&["cluster", "add", "0", "a:1"]));
    expect![[""]].assert_eq(&place.fails(&["cluster", "add", "4", "here"]));
    expect![[""]].assert_eq(&place.fails(&["cluster", "transfer-leader", "x"]));
    expect![[""]].assert_eq(&place.fails(&["status", "--coordinator", "a:1,,b:2"]));
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
    expect![[""]].assert_eq(&said(&[&one, &two]));
    let said = said(&[&one, &three]);
    assert!(said.starts_with("exit 1\nerror: no coordinator answers: $ONE: Connection"), "{said}");
    assert!(said.contains("$THREE: no answer within "), "{said}");
}

#[test]
fn a_backup_overwrites_nothing() {
    let place = Place::new();
    place.file("backup", "precious");
    expect![[""]].assert_eq(&place.fails(&["cluster", "snapshot", "save", "backup"]));
    let args = ["cluster", "snapshot", "save", "none/backup"];
    expect![[""]].assert_eq(&place.fails(&args));
    assert_eq!(place.names("."), ["backup"]);
}
