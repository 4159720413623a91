# Compiler flags for everything: warnings are errors; ccache and mold where they exist.
add_compile_options(-Wall -Wextra -Werror -Wshadow -Wnon-virtual-dtor -Wimplicit-fallthrough)
if(CMAKE_BUILD_TYPE STREQUAL "Release")
  add_compile_options(-fno-plt)
endif()

find_program(CCACHE ccache)
if(CCACHE)
  set(CMAKE_CXX_COMPILER_LAUNCHER ${CCACHE})
endif()
find_program(MOLD mold)
if(MOLD)
  add_link_options(-fuse-ld=mold)
endif()

if(YOKE_SANITIZE)
  add_compile_options(-fsanitize=${YOKE_SANITIZE} -fno-omit-frame-pointer -g)
  add_link_options(-fsanitize=${YOKE_SANITIZE})
endif()
