"""`kdlab teacher SCHEDULER`."""

import argparse

from kdlab.commands.command import number
from kdlab.config.credentials import host_port

ABOUT = "join a teacher to the pool of a scheduler"


def options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("scheduler", help="address, for example tcp://10.0.0.1:8786")
    parser.add_argument("--model", default=None, help="card; default: what the pool serves")
    parser.add_argument("--name", default=None)
    parser.add_argument("--threads", type=number(1), help="CPU threads")
    parser.add_argument("--device", choices=["auto", "cpu", "cuda"], default="auto")
    parser.add_argument("--host", default=None, help="address to listen on")
    for name in ("ca", "cert", "key"):
        parser.add_argument(f"--tls-{name}", default=None, help="PEM file, for tls://")
    parser.add_argument("--insecure", action="store_true", help="plain TCP, for tcp://")
    port, seconds = number(0, 65535), number(0, kind=float)
    parser.add_argument("--port", type=port, default=0, help="of its worker; 0 is any")
    parser.add_argument("--label-port", type=port, default=0, help="for readers; 0 is any")
    parser.add_argument("--patience", type=seconds, help="s without a scheduler, then exit")
    parser.add_argument(
        "--notice",
        help="aws, gcp, azure, http://... or a file: announces that the machine is reclaimed",
    )


def do(arguments: argparse.Namespace) -> int:
    from kdlab.cluster.child_configs import TeacherConfig
    from kdlab.cluster.teachers.preemption import checked_notice
    from kdlab.run.join import certificates, join

    host_port(arguments.notice or "")  # refuses http://[
    files = arguments.tls_ca, arguments.tls_cert, arguments.tls_key
    tls = certificates(arguments.scheduler, *files, insecure=arguments.insecure)
    config = TeacherConfig(
        scheduler=arguments.scheduler,
        name=arguments.name or "",
        host=arguments.host or "",
        threads=arguments.threads or 0,
        device=arguments.device,
        tls=tls,
        port=arguments.port,
        label_port=arguments.label_port,
        patience_s=arguments.patience,
        notice=None if arguments.notice is None else checked_notice(arguments.notice),
    )
    return join(config, arguments.model)
