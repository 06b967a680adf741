//! Tests of the decisions about authorities.

use super::*;
use crate::authority::{AUTHORITY_LIFETIME, test_purpose};

const START: u64 = 1_800_000_000;

fn fresh() -> SecretContent {
    apply(&SecretContent::Absent, AuthorityChange::Create, &test_purpose(), START)
        .map(SecretContent::Authorities)
        .unwrap()
}

fn change(content: &SecretContent, now: u64) -> Option<AuthorityChange> {
    plan(content, now).change
}

fn after(content: &SecretContent, change: AuthorityChange, now: u64) -> SecretContent {
    SecretContent::Authorities(apply(content, change, &test_purpose(), now).unwrap())
}

fn set(content: &SecretContent) -> &AuthoritySet {
    let SecretContent::Authorities(set) = content else { panic!("{content:?}") };
    set
}

#[test]
fn absent_secret_is_created_and_then_kept() {
    assert_eq!(change(&SecretContent::Absent, START), Some(AuthorityChange::Create));
    let content = fresh();
    let expected = AuthorityPlan { usable: Some(set(&content)), change: None, problem: None };
    assert_eq!(plan(&content, START), expected);
    assert_eq!(plan(&content, START + NEXT_AFTER - 1), expected);
    // A clock that is an hour late has no problem.
    assert_eq!(plan(&content, START - CLOCK_SKEW), expected);
}

#[test]
fn authority_is_published_then_issues_then_is_removed() {
    let first = fresh();
    let published = START + NEXT_AFTER;
    assert_eq!(change(&first, published), Some(AuthorityChange::PublishNext));
    let both = after(&first, AuthorityChange::PublishNext, published);
    assert_eq!(set(&both).current, set(&first).current);
    let promoted = published + PUBLICATION_TIME;
    assert_eq!(change(&both, promoted - 1), None);
    assert_eq!(change(&both, promoted), Some(AuthorityChange::Promote));
    let second = after(&both, AuthorityChange::Promote, promoted);
    assert_eq!(Some(&set(&second).current), set(&both).next.as_ref());
    let previous = set(&second).previous.as_ref().unwrap();
    assert_eq!(previous.certificate, set(&first).current.certificate);
    assert_eq!(previous.until, promoted + PUBLICATION_TIME);
    assert_eq!(change(&second, previous.until - 1), None);
    assert_eq!(change(&second, previous.until), Some(AuthorityChange::RemovePrevious));
    let alone = after(&second, AuthorityChange::RemovePrevious, previous.until);
    assert_eq!(set(&alone).previous, None);
    assert_eq!(change(&alone, previous.until), None);
    // The authority that was published first has its whole life before it is followed by another.
    assert_eq!(change(&alone, published + NEXT_AFTER), Some(AuthorityChange::PublishNext));
}

#[test]
fn foreign_and_malformed_secrets_are_never_changed() {
    let data = set(&fresh()).data();
    let foreign = SecretContent::read(&test_purpose(), "kubernetes.io/tls", &data);
    assert_eq!(foreign, SecretContent::Foreign(test_purpose().secret_type));
    let read =
        |data: &SecretData| SecretContent::read(&test_purpose(), test_purpose().secret_type, data);
    let malformed = read(&SecretData::new());
    for content in [foreign, malformed] {
        for now in [0, START, START + 10 * AUTHORITY_LIFETIME] {
            let plan = plan(&content, now);
            assert_eq!((plan.usable, plan.change), (None, None));
            assert!(plan.problem.unwrap().to_string().contains("delete"));
        }
    }
    assert!(matches!(read(&data), SecretContent::Authorities(_)));
}

#[test]
fn authority_of_the_future_is_not_replaced() {
    let content = fresh();
    let plan = plan(&content, START - CLOCK_SKEW - 1);
    assert_eq!((plan.usable, plan.change), (None, None));
    assert_eq!(plan.problem, Some(AuthorityProblem::NotYetValid));
}

#[test]
fn expired_authorities_are_replaced() {
    let content = fresh();
    let expired = START + AUTHORITY_LIFETIME;
    assert_eq!(plan(&content, expired).problem, Some(AuthorityProblem::Expired));
    assert_eq!(change(&content, expired), Some(AuthorityChange::StartOver));
    let replaced = after(&content, AuthorityChange::StartOver, expired);
    assert_ne!(set(&replaced).current, set(&content).current);
    assert_eq!(plan(&replaced, expired).problem, None);
    // If the next one has been published, it follows.
    let both = after(&content, AuthorityChange::PublishNext, expired - DAY);
    assert_eq!(change(&both, expired), Some(AuthorityChange::Promote));
    let promoted = after(&both, AuthorityChange::Promote, expired);
    assert_eq!(set(&promoted).previous, None);
    assert_eq!(change(&both, expired + AUTHORITY_LIFETIME), Some(AuthorityChange::StartOver));
}

#[test]
fn next_authority_issues_early_if_the_current_one_is_about_to_expire() {
    let content = fresh();
    let late = START + AUTHORITY_LIFETIME - DAY;
    assert_eq!(change(&content, late), Some(AuthorityChange::PublishNext));
    let both = after(&content, AuthorityChange::PublishNext, late);
    assert_eq!(change(&both, late), None, "the others learn of it first");
    assert_eq!(change(&both, late + 2 * CLOCK_SKEW), Some(AuthorityChange::Promote));
}
