from schemas import Member, ModelVersion
from tests.support.fakes.announcements import announced
from workers.explorer.weights import membership, newest, supersedes


def version(
    number: int, *, model: str = "policy", epoch: int = 1, trainer: str = "t", incarnation: str = "l"
) -> ModelVersion:
    return announced(number, "a", incarnation=incarnation, model=model, epoch=epoch, trainer_incarnation=trainer)


def test_the_last_record_of_the_model_is_the_present() -> None:
    assert newest([version(1), version(2), version(9, model="other"), None], "policy") == version(2)
    assert newest([version(9, model="other")], "policy") is None


def test_only_this_very_life_is_a_member() -> None:
    assert membership(version(1), "a", "l") == Member(explorer="a", incarnation="l", rank=1)
    assert membership(version(1), "a", "former") is None
    assert membership(version(1), "b", "l") is None


def test_a_repetition_ends_no_transfer_and_anything_else_does() -> None:
    assert not supersedes(version(1), version(1))
    for other in (version(2), version(1, epoch=2), version(1, trainer="restarted"), version(0)):
        assert supersedes(other, version(1))
