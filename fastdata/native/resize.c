#include "resize.h"
