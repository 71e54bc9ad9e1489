"""Tables of the planner's oracle as the planner takes them."""

from kdlab.papers.pipe_bd.block_cost import Block, DeviceLink, Profile, StageCosts


def costs_of(table):
    """Costs of the stages of an oracle's table."""
    links = {
        name: DeviceLink(
            bytes_per_s=link.rate,
            latency_s=link.latency,
            overlap=link.overlap,
            meet_s=link.meet,
        )
        for name, link in table.links.items()
    }
    types = {
        name: [
            Block(
                teacher_s=table.teacher[name][b],
                student_s=table.student[name][b],
                output_bytes=table.output[b],
                gradient_bytes=table.gradient[b],
                fixed_bytes=table.fixed[b],
                row_bytes=table.row[b],
                norms=table.norms[b],
            )
            for b in range(table.blocks)
        ]
        for name in table.teacher
    }
    profile = Profile(
        types=types,
        devices=table.of,
        links=links,
        load_s=table.load,
        load_overlap=table.load_overlap,
        memory_bytes=table.memory,
    )
    return StageCosts(profile, table.batch, lead=table.lead)
