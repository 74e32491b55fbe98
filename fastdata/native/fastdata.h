/* What every source of the compiled part shares: its version, and what it shows to the outside. */
#ifndef FD_FASTDATA_H
#define FD_FASTDATA_H

/* Raised, together with VERSION in __init__.py, by every change of an exported function's
   arguments or results: a build of another version is refused when it is loaded. */
#define FD_VERSION 1

/* All else is hidden (-fvisibility=hidden): our names cannot meet those of another library. */
#define FD_EXPORT __attribute__((visibility("default")))

FD_EXPORT int fd_version(void);

#endif
