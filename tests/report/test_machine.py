from importlib.metadata import PackageNotFoundError, version

from kdlab.report import machine


def test_a_report_does_without_a_package_that_is_missing(monkeypatch):
    """Figures that took an hour are not lost for a missing package."""

    def installed_version(name):
        if name == "mlflow":
            raise PackageNotFoundError(name)
        return version(name)

    monkeypatch.setattr(machine, "version", installed_version)
    versions = machine.versions()
    assert versions["mlflow"] == "not installed"
    assert versions["torch"] == version("torch")
