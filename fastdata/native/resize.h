/* Bilinear resizing. */
#ifndef FD_RESIZE_H
#define FD_RESIZE_H

#include "fastdata.h"

#endif
