"""Problem documents (RFC 9457): the body of every error."""

from __future__ import annotations

from http import HTTPStatus
from typing import TYPE_CHECKING

from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from starlette.exceptions import HTTPException

from ullage_sidecar.health import describe

if TYPE_CHECKING:
    from fastapi import FastAPI, Request


def problem(status: int, detail: str) -> JSONResponse:
    """Return a response with the given status, titled with its standard phrase."""
    body = {"type": "about:blank", "title": HTTPStatus(status).phrase, "status": status, "detail": detail}
    return JSONResponse(body, status, media_type="application/problem+json")


def answer_errors(app: FastAPI) -> None:
    """Have ``app`` answer each error with a problem document."""
    for kind in (HTTPException, RequestValidationError, Exception):
        app.add_exception_handler(kind, _answer)


async def _answer(_request: Request, error: Exception) -> JSONResponse:
    if isinstance(error, RequestValidationError):
        return problem(422, "; ".join(f"{'.'.join(map(str, e['loc']))}: {e['msg']}" for e in error.errors()))
    if isinstance(error, HTTPException):
        response = problem(error.status_code, error.detail)
        response.headers.update(error.headers or {})
        return response
    return problem(500, describe(error))
