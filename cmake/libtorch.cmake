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

if(YOKE_CUDA)
  if(NOT EXISTS ${TORCH_ROOT}/lib/libtorch_cuda.so)
    message(FATAL_ERROR "The libtorch in ${TORCH_ROOT} has no CUDA. Pass -DCMAKE_PREFIX_PATH=.../site-packages/torch of a CUDA wheel.")
  endif()
  # A CUDA libtorch includes CUDA's and NCCL's headers. The wheels put them beside torch, below site-packages/nvidia, but torch's
  # own requirements leave crt/ and nv/ out: `cuda-toolkit[crt,cccl]` brings those (README, Building). A toolkit installed elsewhere
  # serves as well; places other than /usr/local/cuda are given by -DYOKE_CUDA_INCLUDE="folder;folder".
  get_filename_component(site ${TORCH_ROOT} DIRECTORY)
  find_path(YOKE_CUDA_HEADERS NAMES crt/host_config.h HINTS ${YOKE_CUDA_INCLUDE} ${site}/nvidia/cu13/include /usr/local/cuda/include)
  find_path(YOKE_NCCL_HEADERS NAMES nccl.h HINTS ${YOKE_CUDA_INCLUDE} ${site}/nvidia/nccl/include)
  if(NOT YOKE_CUDA_HEADERS OR NOT YOKE_NCCL_HEADERS)
    message(FATAL_ERROR "No CUDA headers (crt/host_config.h, nccl.h) found. Install torch together with 'cuda-toolkit[crt,cccl]' (see README), "
                        "or pass -DYOKE_CUDA_INCLUDE=/path/to/cuda/include.")
  endif()
  # The folder that has crt/ first; the wheels have the libraries' own headers (cusparse.h, ...) that a bare toolkit may lack.
  target_include_directories(yoke_libtorch SYSTEM INTERFACE ${YOKE_CUDA_HEADERS} ${site}/nvidia/cu13/include ${YOKE_NCCL_HEADERS})
  target_compile_definitions(yoke_libtorch INTERFACE YOKE_CUDA USE_C10D_NCCL)
  file(GLOB nvidia_libraries ${site}/nvidia/*/lib)
  # libtorch finds its own companions by their rpath when it runs; the linker has to be told.
  foreach(folder ${nvidia_libraries})
    target_link_options(yoke_libtorch INTERFACE -Wl,-rpath-link,${folder} -Wl,-rpath,${folder})
  endforeach()
  target_link_libraries(yoke_libtorch INTERFACE -Wl,--no-as-needed torch_cuda c10_cuda -Wl,--as-needed)
endif()
