# What `cmake --install` puts below its prefix: the programs and, with the engine, the training library for find_package(yoke).
#
#   bin/yoke, bin/yoke-worker
#   include/yoke/*.h                 the public headers; include/yoke/internal/ holds what they include
#   lib/yoke/*.a                     the rooms that the library consists of
#   lib/cmake/yoke/yokeConfig.cmake  target yoke::train
include(GNUInstallDirs)
include(CMakePackageConfigHelpers)

install(TARGETS yoke RUNTIME DESTINATION ${CMAKE_INSTALL_BINDIR})
if(NOT YOKE_ENGINE)
  return()
endif()
install(TARGETS yoke-worker RUNTIME DESTINATION ${CMAKE_INSTALL_BINDIR})
# The worker finds libtorch where it was built; moving that needs a build against the new place.
set_target_properties(yoke-worker PROPERTIES INSTALL_RPATH ${TORCH_ROOT}/lib)

# The rooms that the library's objects come from, each before those that it needs.
set(rooms loop optim train_parallel comm parallel train_checkpoint train_data os base)
set(YOKE_ARCHIVES)
foreach(room ${rooms})
  install(TARGETS yoke_${room} ARCHIVE DESTINATION ${CMAKE_INSTALL_LIBDIR}/yoke)
  list(APPEND YOKE_ARCHIVES ${CMAKE_STATIC_LIBRARY_PREFIX}yoke_${room}${CMAKE_STATIC_LIBRARY_SUFFIX})
endforeach()

install(DIRECTORY ${PROJECT_SOURCE_DIR}/include/yoke DESTINATION ${CMAKE_INSTALL_INCLUDEDIR} FILES_MATCHING PATTERN *.h)
foreach(header core/base/error core/base/result core/base/units train/comm/communicator train/loop/autocast train/loop/data_parallel_module
        train/loop/epoch_sampler train/loop/job train/loop/module_checkpoint)
  get_filename_component(folder ${header} DIRECTORY)
  install(FILES ${PROJECT_SOURCE_DIR}/src/${header}.h DESTINATION ${CMAKE_INSTALL_INCLUDEDIR}/yoke/internal/${folder})
endforeach()

set(YOKE_CMAKE_DIR ${CMAKE_INSTALL_LIBDIR}/cmake/yoke)
configure_package_config_file(${PROJECT_SOURCE_DIR}/cmake/yokeConfig.cmake.in ${PROJECT_BINARY_DIR}/yokeConfig.cmake
                              INSTALL_DESTINATION ${YOKE_CMAKE_DIR} PATH_VARS CMAKE_INSTALL_INCLUDEDIR CMAKE_INSTALL_LIBDIR)
write_basic_package_version_file(${PROJECT_BINARY_DIR}/yokeConfigVersion.cmake COMPATIBILITY SameMinorVersion)
install(FILES ${PROJECT_BINARY_DIR}/yokeConfig.cmake ${PROJECT_BINARY_DIR}/yokeConfigVersion.cmake DESTINATION ${YOKE_CMAKE_DIR})
