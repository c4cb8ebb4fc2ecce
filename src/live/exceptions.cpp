// The tag of C++ exceptions, which the wheel's libraries lack, since they have none.
__asm__(".globl __cpp_exception\n.tagtype __cpp_exception i32\n__cpp_exception:\n");
