"""External code: modules and files of the user, and optional packages."""
