/* Compiles the header that FD_PART names for any processor, with names that end in _portable, and
   for those with AVX2, with FD_AVX2 defined and names that end in _avx2, unless FD_ONLY_PORTABLE is
   defined. */
#define FD_(name) name##_portable
#include FD_PART
#undef FD_

#if FD_HAS_AVX2 && !defined FD_ONLY_PORTABLE
FD_BEGIN_AVX2
#define FD_AVX2
#define FD_(name) name##_avx2
#include FD_PART
#undef FD_
#undef FD_AVX2
FD_END_AVX2
#endif
#undef FD_PART
