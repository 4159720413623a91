# Target yoke::libtorch: the libtorch that scripts/setup put into deps/, or another one named by CMAKE_PREFIX_PATH.
#
# The libraries are linked by name instead of through find_package(Torch): that package drags in a CUDA toolkit for a
# CUDA libtorch and flags of its own. What Yoke needs is four libraries and one include folder.
find_path(TORCH_ROOT NAMES include/ATen/ATen.h HINTS ${CMAKE_PREFIX_PATH} PATHS ${PROJECT_SOURCE_DIR}/deps/libtorch
          NO_DEFAULT_PATH DOC "libtorch: the folder that holds include/ and lib/")
if(NOT TORCH_ROOT)
  message(FATAL_ERROR "No libtorch found. Run scripts/setup, or pass -DCMAKE_PREFIX_PATH=/path/to/libtorch, "
                      "or build the tool alone with the preset `tool`.")
endif()
get_filename_component(TORCH_ROOT ${TORCH_ROOT} REALPATH)
message(STATUS "libtorch: ${TORCH_ROOT}")

add_library(yoke_libtorch INTERFACE)
add_library(yoke::libtorch ALIAS yoke_libtorch)
target_include_directories(yoke_libtorch SYSTEM INTERFACE ${TORCH_ROOT}/include ${TORCH_ROOT}/include/torch/csrc/api/include)
# libtorch brings headers of its own fmt, newer than Debian's library: units that see them use fmt from its headers alone.
target_compile_definitions(yoke_libtorch INTERFACE USE_C10D_GLOO FMT_HEADER_ONLY)
target_link_directories(yoke_libtorch INTERFACE ${TORCH_ROOT}/lib)
target_link_options(yoke_libtorch INTERFACE -Wl,-rpath,${TORCH_ROOT}/lib)
target_link_libraries(yoke_libtorch INTERFACE torch_cpu c10)

# Gloo's own headers are in no wheel; Debian's serve for compiling (never link its library: libtorch carries its own).
find_path(YOKE_GLOO_INCLUDE NAMES gloo/rendezvous/store.h REQUIRED DOC "Gloo's headers (Debian: libgloo-dev)")
target_include_directories(yoke_libtorch SYSTEM INTERFACE ${YOKE_GLOO_INCLUDE})
