"""Tables of the planner's oracle as the planner takes them."""

from kdlab.papers.pipe_bd.block_cost import Block, DeviceLink, Profile, StageCosts


def costs_of(made):
    """Costs of the stages of an oracle's table."""
    links = {
        name: DeviceLink(
            bytes_per_s=link.rate,
            latency_s=link.latency,
            overlap=link.overlap,
            meet_s=link.meet,
        )
        for name, link in made.links.items()
    }
    types = {
        name: [
            Block(
                teacher_s=made.teacher[name][b],
                student_s=made.student[name][b],
                output_bytes=made.output[b],
                gradient_bytes=made.gradient[b],
                fixed_bytes=made.fixed[b],
                row_bytes=made.row[b],
                norms=made.norms[b],
            )
            for b in range(made.blocks)
        ]
        for name in made.teacher
    }
    profile = Profile(
        types=types,
        devices=made.of,
        links=links,
        load_s=made.load,
        load_overlap=made.load_overlap,
        memory_bytes=made.memory,
    )
    return StageCosts(profile, made.batch, lead=made.lead)
