/* What Python calls: a task's crops, all at once. */
#include "fastdata.h"

int fd_version(void) { return FD_VERSION; }
