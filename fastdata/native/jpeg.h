/* Windows of JPEGs. */
#ifndef FD_JPEG_H
#define FD_JPEG_H

#include "fastdata.h"

#endif
