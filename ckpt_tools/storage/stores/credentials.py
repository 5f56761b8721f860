"""Who asks: credentials by the libraries' own means. Nothing here keeps, prints or passes on a secret but to
the client that signs with it.

obstore itself reads the environment, containers' credentials, and for Google and Azure all that these have.
Profiles of AWS (``~/.aws``, SSO, assumed roles, programs), web identities and machines' roles are asked of
botocore, as every AWS tool does; without it obstore tries the latter two.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from ckpt_tools.errors import CannotLook, UsageError

if TYPE_CHECKING:
    from collections.abc import Callable

    Provider = Callable[[], Any]
    """What obstore calls for credentials, and again when they have expired."""

_KEEP = 9 * 60
"""Seconds for which one answer of botocore's is used: it renews what expires within 10 minutes."""
_NATIVE = ("AWS_CONTAINER_CREDENTIALS_RELATIVE_URI", "AWS_CONTAINER_CREDENTIALS_FULL_URI")
"""Variables by which obstore gets credentials itself."""
_OWN = frozenset(
    {
        "container_credentials_full_uri",
        "container_credentials_relative_uri",
        "metadata_endpoint",
        "web_identity_token_file",
    }
)
"""Options that say the same."""
NONE_HINT = (
    "set AWS_PROFILE, or AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or log in ('aws sso login'); for a"
    " public bucket say --store-option skip_signature=true"
)


def aws(own: Mapping[str, str], env: Mapping[str, str]) -> tuple[dict[str, str], Provider | None]:
    """The options of a store on S3 without ``profile``, with what the profile says of region and endpoint,
    and what is asked for credentials; None where obstore finds them itself.

    As with AWS' own tools a profile that is named as an option goes before the environment, and
    ``AWS_PROFILE`` after it. Raises CannotLook where there are none, and UsageError for no such profile.
    """
    given = {key: value for key, value in own.items() if key != "profile"}
    profile = own.get("profile")
    skip = own.get("skip_signature", env.get("AWS_SKIP_SIGNATURE", "")).lower()
    if skip in ("1", "true", "yes", "on"):
        return given, None
    native = (
        bool(env.get("AWS_ACCESS_KEY_ID")) or any(env.get(v) for v in _NATIVE) or bool(_OWN & given.keys())
    )
    if native and profile is None:
        return given, None
    try:
        import botocore.session
    except ImportError:
        if profile is None and not env.get("AWS_PROFILE"):
            return given, None  # the machine's own role, which obstore asks for
        raise CannotLook(
            "profiles of AWS need boto3, which is not installed", "pip install 'ckpt-tools[cloud]'"
        ) from None
    session = botocore.session.Session(profile=profile)
    found = _credentials(session, profile or env.get("AWS_PROFILE", ""))
    return {**_of_profile(session, env), **given}, found


def _credentials(session: Any, profile: str) -> Provider:
    """Asked once now, so that what is wrong with them is said in one place. Raises as ``aws`` does."""
    import botocore.exceptions as wrong

    try:
        found = session.get_credentials()
        if found is not None:
            found.get_frozen_credentials()
    except wrong.ProfileNotFound:
        raise UsageError(
            f"there is no profile {profile!r} in ~/.aws/config or ~/.aws/credentials",
            "'aws configure list-profiles' lists them",
        ) from None
    except Exception as e:
        raise _failed(e, profile) from None
    if found is None:
        raise CannotLook("there are no credentials for S3", NONE_HINT)
    return _provider(found)


def _failed(e: Exception, profile: str) -> CannotLook:
    """What botocore says, by the name of its error: its text may hold what was sent."""
    name, of = type(e).__name__, f" of the profile {profile!r}" if profile else ""
    login = f"'aws sso login{f' --profile {profile}' if profile else ''}', then run it again"
    if "SSO" in name or "Token" in name or "Login" in name:
        return CannotLook(f"the login{of} has expired, or there was none ({name})", login)
    return CannotLook(
        f"credentials{of} could not be obtained ({name})", f"'aws sts get-caller-identity' says more; {login}"
    )


def _provider(found: Any) -> Provider:
    from datetime import datetime, timedelta, timezone

    def credentials() -> dict[str, Any]:
        frozen = found.get_frozen_credentials()
        return {
            "access_key_id": frozen.access_key,
            "secret_access_key": frozen.secret_key,
            "token": frozen.token,
            "expires_at": datetime.now(timezone.utc) + timedelta(seconds=_KEEP),
        }

    return credentials


def _of_profile(session: Any, env: Mapping[str, str]) -> dict[str, str]:
    """The region and the endpoint in a profile, as far as no variable says otherwise (AWS SDKs Reference
    Guide, "Service-specific endpoints").
    """
    profile: Mapping[str, Any] = session.get_scoped_config()
    out = {}
    if not (env.get("AWS_REGION") or env.get("AWS_DEFAULT_REGION")) and profile.get("region"):
        out["region"] = profile["region"]
    if not any(env.get(name) for name in ("AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL", "AWS_ENDPOINT")):
        services = session.full_config.get("services", {}).get(profile.get("services"), {})
        endpoint = services.get("s3", {}).get("endpoint_url") or profile.get("endpoint_url")
        if endpoint and env.get("AWS_IGNORE_CONFIGURED_ENDPOINT_URLS", "").lower() != "true":
            out["endpoint"] = endpoint
    return out
