"""`microrl push`: upload a trained adapter, or the model with it merged, to the Hugging Face Hub, with its model card."""

from __future__ import annotations

from typing import Annotated

import typer

from microrl.cli import options
from microrl.cli.export import Base, Dtype, Form, Trained, export_summary, refuse_type
from microrl.cli.output import emit, say
from microrl.errors import UserError, invalid_value

EXAMPLES = """
[bold]Examples[/]
  microrl push me/my-adapter                       [dim]the newest run[/]
  microrl push me/my-model runs/mine/best --as full --dtype bfloat16 --private
"""


def push(
    hub_id: Annotated[str, typer.Argument(metavar="OWNER/NAME", help="Repository on the hub; created if there is none.")],
    run: Trained = None,
    *,
    form: Form = None,
    dtype: Dtype = None,
    model: Base = None,
    private: Annotated[
        bool, typer.Option("--private", help="Create a private repository; refused if it exists and is public.")
    ] = False,
    as_json: options.Json = False,
) -> None:
    """Upload a trained adapter or whole model to the Hugging Face Hub. It is public unless you pass --private."""
    from huggingface_hub import get_token
    from huggingface_hub.utils import HFValidationError, validate_repo_id

    from microrl.cli.target import find_adapter
    from microrl.models import hub

    try:
        validate_repo_id(hub_id if "/" in hub_id else "")
    except HFValidationError:
        raise invalid_value("OWNER/NAME", hub_id, "for example: microrl push me/my-adapter RUN") from None
    refuse_type(form, dtype)
    config, folder, adapter = find_adapter(run, model)
    if not hub.reachable():
        raise UserError(f"the hub cannot be reached at {hub.endpoint()}", "check the network; if HF_HUB_OFFLINE is set, unset it")
    if get_token() is None:
        raise UserError("there is no token for the hub", "log in with `hf auth login`, or set HF_TOKEN")
    from microrl.commands.export import push

    summary = push(config, folder, adapter, hub_id, form=form, dtype=dtype, private=private)
    if as_json:
        emit(summary)
        return
    say(f"{summary['url']}: {export_summary(summary)}")
